"""Changes to imported data over HTTP: other labels, deleted samples, a search for wrong labels."""

import io
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support.files.pictures import imported, save_tree
from support.web.service import Answer, Service
from support.worker.services import StartWorker, wait_for, wait_until

from preflight import Client, TrainJob
from training.catalog.catalog import Catalog
from training.data.dataset_store import map_images
from training.importing.revision import revise
from worker.config.settings import Settings
from worker.imports.records import ENDED, ImportState
from worker.jobs.local.erasing import sample_use


def ended(service: Service, answer: Answer, seconds: float = 90) -> ImportState:
    """Return the last state of what a worker was asked for."""
    assert answer.status == 202, answer.body
    path = f"/v1/imports/{answer['import_id']}"
    wait_until(lambda: service.ask("GET", path)["status"] in ENDED, seconds)
    return ImportState.model_validate_json(service.ask("GET", path).body)


def test_two_tabs_that_relabel_one_sample(
    service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """The second is refused at once, with who was first: while that is under way, and afterwards."""
    imported(settings.data_dir, save_tree(tmp_path / "photos", 8), "photos")
    path = "/v1/datasets/photos@1/relabel"
    first = service.ask("POST", path, {"changes": {"0": "ring"}, "by": "ada"})
    assert service.ask("POST", path, {"changes": {"0": "disc"}, "by": "bob"})["reason"] == "import_open"
    start_worker()
    assert ended(service, first).version == "photos@2"
    refused = service.ask("POST", path, {"changes": {"0": "disc"}, "by": "bob"})
    assert (refused.status, refused["reason"]) == (409, "not_newest")
    assert "photos@1 is not the newest version any more; look at photos@2, which ada made at " in str(
        refused["message"]
    )
    history = service.ask("GET", "/v1/datasets/photos")["history"]
    assert isinstance(history, list)
    assert [each["by"] for each in history] == ["ada", None]


def test_a_sample_is_deleted_beside_a_job_that_reads_it(
    service: Service, settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """What refers to it is said before; the job ends on the old content, which then goes."""
    version = imported(settings.data_dir, save_tree(tmp_path / "photos", 30), "photos")
    catalog = Catalog(settings.data_dir)
    imported(settings.data_dir, tmp_path / "photos", "other", test=0.4)
    picture = map_images(catalog.store(version.sha256))[0][3].tobytes()
    job = {"type": "preflight.train.v1", "dataset": "photos", "job_id": "a", "calibrate": False, "epochs": 400,
           "plan": {"threads": 1}}  # fmt: skip
    client.enqueue(TrainJob.model_validate(job, strict=True))
    start_worker()
    wait_until(lambda: client.status("a").step is not None, 60)
    use = service.ask("GET", "/v1/datasets/photos/samples/3")
    assert (use["dataset"], use["versions"], use["elsewhere"]) == ("photos@1", ["photos@1"], ["other@1"])
    assert (use["active_jobs"], use["active"], use["trained"]) == (["a"], 1, 0)
    path = f"/v1/datasets/photos/samples/3?sha256={use['sha256']}&by=ada"
    done = ended(service, service.ask("DELETE", path))
    assert (done.status, done.stage) == ("finished", "deleted"), done
    assert done.message == "deleted from photos@1; 1 former content is kept until the job that reads it has ended"
    stale = service.ask("DELETE", path)
    assert (stale.status, stale["reason"]) == (409, "changed")
    for method in ("GET", "DELETE"):
        assert service.ask(method, f"/v1/datasets/photos/samples/{version.samples - 1}").status == 404
    wait_for(client, "a", "finished")
    result = client.result("a")
    assert result is not None
    assert result.dataset_sha256 == version.sha256

    def holders() -> list[str]:
        catalog.sweep()
        stores = [path for path in catalog.stores.glob("*.safetensors") if picture in path.read_bytes()]
        return [path.name.partition(".")[0] for path in stores]

    wait_until(lambda: holders() == [catalog.find("other").sha256], 60)
    assert service.ask("GET", "/v1/datasets/photos/samples/3")["trained_jobs"] == ["a"]


def test_only_jobs_on_versions_with_the_picture_refer_to_it(settings: Settings, client: Client, tmp_path: Path) -> None:
    """And those on a version that was removed: nobody knows its pictures any more."""
    imported(settings.data_dir, save_tree(tmp_path / "photos", 8), "photos")
    catalog = Catalog(settings.data_dir)
    revise(catalog, "photos@1", {3: None}, "ada")
    revise(catalog, "photos@2", {4: None}, "ada")
    for dataset in ("photos@1", "photos@2", "photos@3", "photos"):
        client.enqueue(TrainJob(type="preflight.train.v1", dataset=dataset, job_id=dataset.replace("@", "-")))
    assert sample_use("photos@1", 3, settings).active_jobs == ("photos-1",)
    assert sample_use("photos@1", 0, settings).active == 4
    catalog.remove("photos@2")
    assert {*sample_use("photos@1", 3, settings).active_jobs} == {"photos-1", "photos-2"}


def test_duplicates_by_pages_and_samples_by_numbers(service: Service, settings: Settings, tmp_path: Path) -> None:
    source = save_tree(tmp_path / "photos", 10)
    for number in range(9):
        shutil.copy(source / "disc" / f"{number}.png", source / "ring" / f"<copy> {number}.png")
    imported(settings.data_dir, source, "photos", keep_duplicates=True)
    path = "/v1/datasets/photos/duplicates"
    pages = [service.ask("GET", f"{path}?kind=contradicting&first={first}&count=5") for first in (0, 5)]
    assert [page["total"] for page in pages] == [9, 9]
    pairs = [pair for page in pages for pair in list_of(page["pairs"])]
    assert len({str(pair) for pair in pairs}) == 9
    assert service.ask("GET", f"{path}?kind=odd").status == 422
    left, right = ImportedPair(pairs[0]).samples
    sheet = service.ask("GET", f"/v1/datasets/photos/samples?samples={left},{right},9999999")
    assert sheet.headers["x-samples"] == f"{left},{right}"
    picture = Image.open(io.BytesIO(sheet.body))
    assert picture.crop((0, 0, 28, 28)).tobytes() == picture.crop((28, 0, 56, 28)).tobytes()
    Catalog(settings.data_dir).pairs(Catalog(settings.data_dir).find("photos").sha256).unlink()
    assert service.ask("GET", f"{path}?kind=contradicting")["total"] == 5  # as an earlier release has them


def list_of(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


class ImportedPair:
    """A pair of an answer."""

    def __init__(self, value: object) -> None:
        assert isinstance(value, dict)
        self.samples = [int(each) for each in value["samples"]]


@pytest.mark.slow
def test_wrong_labels_are_looked_for_by_a_worker(
    service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """With its cost before, how far it is, and cancellation; what was found stays with that content."""
    version = imported(settings.data_dir, save_tree(tmp_path / "photos", 150), "photos")
    path = "/v1/datasets/photos/issues"
    before = service.ask("GET", path)
    assert (before["found"], before["total"]) == (None, 0)
    assert 0 < float(str(before["expected_seconds"])) < 600
    start_worker()
    cancelled = service.ask("POST", path, {})
    wait_until(lambda: service.ask("GET", f"/v1/imports/{cancelled['import_id']}")["read"] != 0, 90)
    state = ImportState.model_validate_json(service.ask("GET", f"/v1/imports/{cancelled['import_id']}").body)
    assert (state.kind, state.stage, state.seconds_left is not None) == ("issues", "training", True)
    assert service.ask("POST", f"/v1/imports/{cancelled['import_id']}/cancel", {}).status == 200
    assert ended(service, cancelled).status == "cancelled"
    done = ended(service, service.ask("POST", path, {}), 180)
    assert (done.status, done.version) == ("finished", "photos@1"), done
    found = service.ask("GET", f"{path}?first=10&count=20")
    assert found["total"] == version.samples
    assert isinstance(found["found"], dict)
    assert len(found["found"]["issues"]) == 20
    assert service.ask("POST", "/v1/datasets/absent/issues", {}).status == 404
