"""Takes dashboard.png, the picture of the dashboard, from the running demo. It needs Chromium.

python docs/pictures/dashboard.py
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import chromium  # noqa: E402

# Until the queue of the model without batches has its length.
WATCHED_S = 20


def main() -> None:
    command = [sys.executable, "-u", "-m", "examples.demo", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as profiles,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo,  # noqa: S603
    ):
        try:
            assert demo.stdout is not None
            found = (re.search(r"(http://\S+?)/\s*$", line) for line in demo.stdout)
            url = next(match[1] for match in found if match)
            # The demo's clients call only while its page is visible, so each page has a browser.
            with (
                chromium(Path(profiles) / "demo") as page,
                chromium(Path(profiles) / "dashboard", height=720) as dashboard,
            ):
                dashboard.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
                page.get(f"{url}/")
                dashboard.get(f"{url}/-/dashboard")
                time.sleep(WATCHED_S)
                dashboard.save_screenshot(str(HERE / "dashboard.png"))
        finally:
            demo.terminate()
            demo.communicate()
    print("wrote dashboard.png")


if __name__ == "__main__":
    main()
