"""The index itself: members of RQ's registries and their jobs, in a private SQLite database that lives with it."""

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import RLock
from typing import Final

from preflight.errors import InvalidConfig
from worker.web.listing.fields import COLUMNS
from worker.web.listing.grammar import Condition

SEARCH_SECONDS: Final = 2.0
"""Longest time that one search holds the table."""
INSTRUCTIONS: Final = 10_000
"""Instructions of SQLite between two looks at the clock; they take some tenths of a millisecond."""
CACHE_KIB: Final = 24 * 1024
"""Memory of the database; SQLite keeps the rest in a temporary file."""
TABLES: Final = f"""
CREATE TABLE members (source TEXT, rq_id TEXT, score REAL, job_id TEXT, is_read INTEGER, PRIMARY KEY (rq_id, source));
CREATE INDEX member_scores ON members (source, score);
CREATE INDEX member_jobs ON members (job_id);
CREATE INDEX unread ON members (is_read) WHERE is_read = 0;
CREATE TABLE jobs ({", ".join(COLUMNS)}, PRIMARY KEY (job_id)) WITHOUT ROWID;
CREATE INDEX by_update ON jobs (running DESC, updated DESC, job_id);
CREATE INDEX by_status ON jobs (status, running DESC, updated DESC, job_id);
"""
UPSERT: Final = f"INSERT OR REPLACE INTO jobs VALUES ({', '.join(f':{name}' for name in COLUMNS)})"
OF_SOURCE: Final = "WHERE source = ? AND rq_id IN (SELECT value FROM json_each(?))"
OF_JOBS: Final = "WHERE job_id IN (SELECT value FROM json_each(?))"

Entry = tuple[str, float]
"""RQ's id and its score."""


@dataclass(frozen=True, slots=True)
class Found:
    """Jobs that match a search."""

    ids: Mapping[str, str]
    """Id of a job -> RQ's id by which it was found; one page, in order."""
    matching: Mapping[str, int]
    """Status -> number of matching jobs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished job, as far as it helps to estimate the next one like it."""

    seconds: float
    """Seconds from its start to its end."""
    accuracy: float | None
    epochs: float | None


class TooSlow(InvalidConfig):
    """A search that took too long."""


class JobTable:
    """Members and jobs; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        for setting in (f"cache_size = -{CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.executescript(TABLES)

    def count(self, source: str) -> int:
        """Return the number of members of a source."""
        with self._lock:
            (found,) = self._database.execute("SELECT count(*) FROM members WHERE source = ?", [source]).fetchone()
            return int(found)

    def newest(self, source: str) -> float | None:
        """Return the highest score of a source; None where it is empty."""
        with self._lock:
            query = "SELECT max(score) FROM members WHERE source = ?"
            (found,) = self._database.execute(query, [source]).fetchone()
            return None if found is None else float(found)

    def ids(self, source: str, *, below: float | None = None) -> set[str]:
        """Return the members of a source, or those with a lower score than `below`."""
        with self._lock:
            query = "SELECT rq_id FROM members WHERE source = ? AND (? IS NULL OR score < ?)"
            return {rq_id for (rq_id,) in self._database.execute(query, [source, below, below])}

    def oldest(self, source: str, count: int) -> set[str]:
        """Return the members with the lowest scores."""
        with self._lock:
            query = "SELECT rq_id FROM members WHERE source = ? ORDER BY score LIMIT ?"
            return {rq_id for (rq_id,) in self._database.execute(query, [source, max(0, count)])}

    def add(self, source: str, entries: Iterable[Entry]) -> None:
        """Add members; new ones are to be read."""
        with self._lock, self._database:
            self._database.executemany(
                "INSERT OR IGNORE INTO members VALUES (?, ?, ?, NULL, 0)",
                [(source, rq_id, score) for rq_id, score in entries],
            )

    def remove(self, source: str, rq_ids: Collection[str]) -> None:
        """Remove members, and jobs that no other member leads to."""
        if not rq_ids:
            return
        with self._lock, self._database:
            removed = [source, json.dumps([*rq_ids])]
            rows = self._database.execute(f"SELECT job_id FROM members {OF_SOURCE}", removed).fetchall()
            self._database.execute(f"DELETE FROM members {OF_SOURCE}", removed)
            self._database.execute(
                f"DELETE FROM jobs {OF_JOBS} AND NOT EXISTS (SELECT 1 FROM members WHERE members.job_id = jobs.job_id)",
                [json.dumps([job_id for (job_id,) in rows])],
            )

    def read_again(self, rq_ids: Collection[str]) -> None:
        """Mark members as to be read."""
        with self._lock, self._database:
            query = "UPDATE members SET is_read = 0 WHERE rq_id IN (SELECT value FROM json_each(?))"
            self._database.execute(query, [json.dumps([*rq_ids])])

    def read_next_again(self, after: int, count: int) -> int:
        """Mark the next members after a row as to be read; returns the last of them, 0 at the end."""
        with self._lock, self._database:
            query = "SELECT rowid FROM members WHERE rowid > ? ORDER BY rowid LIMIT ?"
            rows = [row for (row,) in self._database.execute(query, [after, count])]
            query = "UPDATE members SET is_read = 0 WHERE rowid IN (SELECT value FROM json_each(?))"
            self._database.execute(query, [json.dumps(rows)])
            return rows[-1] if len(rows) == count else 0

    def unread(self, most: int) -> list[str]:
        """Return RQ's ids of members to be read."""
        with self._lock:
            query = "SELECT DISTINCT rq_id FROM members WHERE is_read = 0 LIMIT ?"
            return [rq_id for (rq_id,) in self._database.execute(query, [most])]

    def put(self, job_ids: Mapping[str, str], rows: Sequence[Mapping[str, str | float | None]]) -> None:
        """Note that members were read: RQ's id -> the job's, and the rows of those jobs that exist."""
        there = {row["job_id"] for row in rows}
        gone = [job_id for job_id in job_ids.values() if job_id not in there]
        with self._lock, self._database:
            self._database.executemany(
                "UPDATE members SET is_read = 1, job_id = ? WHERE rq_id = ?",
                [(job_id, rq_id) for rq_id, job_id in job_ids.items()],
            )
            self._database.executemany(UPSERT, rows)
            self._database.execute(f"DELETE FROM jobs {OF_JOBS}", [json.dumps(gone)])

    def counts(self, conditions: Sequence[Condition] = ()) -> dict[str, int]:
        """Return status -> number of jobs for which all conditions hold."""
        with self._lock:
            where, values = _where(conditions)
            query = f"SELECT status, count(*) FROM jobs{where} GROUP BY status"
            return dict(self._database.execute(query, values).fetchall())

    def find(
        self, conditions: Sequence[Condition], statuses: Collection[str], order: str, *, offset: int, limit: int
    ) -> Found:
        """Return a page of the jobs of these statuses, all where none is given, for which all conditions hold.

        Raises:
            TooSlow: it took more than `SEARCH_SECONDS`.
        """
        chosen = [*conditions]
        if statuses:
            chosen.append(Condition("status IN (SELECT value FROM json_each(?))", [json.dumps([*statuses])]))
        where, values = _where(chosen)
        query = f"SELECT job_id, member FROM jobs{where} ORDER BY {_timed(order)} LIMIT ? OFFSET ?"
        with self._lock, self._limited():
            rows = self._database.execute(query, [*values, limit, offset]).fetchall()
            return Found(dict(rows), self.counts(conditions))

    def finished_like(self, dataset: str, model: str, recipe: str | None, most: int) -> list[Ended]:
        """Return the newest finished jobs of this data set, whatever its version, this network and this recipe.

        None where it takes more than `SEARCH_SECONDS`: a form and a check do without an estimate.
        """
        query = (
            "SELECT updated - started, accuracy, epochs FROM jobs "
            "WHERE status = 'finished' AND started IS NOT NULL AND updated IS NOT NULL AND "
            "(dataset = ? OR substr(dataset, 1, ?) = ?) AND model = ? AND recipe IS ? ORDER BY updated DESC LIMIT ?"
        )
        versions = f"{dataset.partition('@')[0]}@"
        with self._lock, suppress(TooSlow), self._limited():
            rows = self._database.execute(query, [dataset, len(versions), versions, model, recipe, most]).fetchall()
            return [Ended(*row) for row in rows]
        return []

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Interrupt SQLite's query after `SEARCH_SECONDS`."""
        deadline = time.monotonic() + SEARCH_SECONDS
        self._database.set_progress_handler(lambda: int(time.monotonic() > deadline), INSTRUCTIONS)
        try:
            yield
        except sqlite3.OperationalError as error:
            if time.monotonic() <= deadline:
                raise
            message = f"the search took more than {SEARCH_SECONDS:g} s; use fewer terms, or a status"
            raise TooSlow(message, field="q") from error
        finally:
            self._database.set_progress_handler(None, 0)


def _where(conditions: Sequence[Condition]) -> tuple[str, list[str | float]]:
    if not conditions:
        return "", []
    sql = " AND ".join(condition.sql for condition in conditions)
    return f" WHERE {_timed(sql)}", [value for condition in conditions for value in condition.values]


def _timed(sql: str) -> str:
    """Return SQL with the time in place of `:now`; placeholders of two kinds do not mix."""
    return sql.replace(":now", f"{time.time():.3f}")
