"""`preflight calibrate --report`: the calibration section as a page."""

import tempfile
from pathlib import Path

from calibration.result import CalibrationResult
from training.process.runner import run_child
from training.system.requirements import require_packages
from worker.config.settings import Settings, child_environment
from worker.features.report import child
from worker.features.report.request import PACKAGES, REPORT, REQUEST, CalibrationReportRequest


def require_report_packages() -> None:
    """Raise `MissingPackage` when a package that reports need is not installed."""
    require_packages(PACKAGES, "--report needs it", "report")


def render_calibration(result: CalibrationResult, subject: str, facts: dict[str, str], settings: Settings) -> str:
    """Return the page; a child process renders it."""
    environment = {**child_environment(), "MPLCONFIGDIR": str(settings.cache_dir / "matplotlib")}
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        target = Path(directory) / REPORT
        body = REQUEST.dump_json(CalibrationReportRequest(target=target, subject=subject, facts=facts, result=result))
        run_child(child.MODULE, body, Path(directory), environment, task="report")
        return target.read_text(encoding="utf-8")
