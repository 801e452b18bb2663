"""Take the documentation's pictures of a running MLflow: a run, its ROC curve, a registered model,
a sweep's trials.

pip install selenium    # and Chromium with its driver: apt install chromium chromium-driver
mlflow ui --backend-store-uri sqlite:///mlflow.db &
python docs/pictures/screenshot.py http://127.0.0.1:5000 --model tipcast
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

HERE = Path(__file__).resolve().parent
SIZE = (1200, 1100)
VIEW = "?workflowType=machine_learning"
"""Without it the pages are framed by MLflow's menu for language models."""
ASSISTANT = "[data-component-id='mlflow.assistant.chat_panel.close']"
"""The button that closes the panel over the page's right third."""
SECONDS = 60
"""How long a page may take to show its text."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server")
    parser.add_argument(
        "--model", default="tipcast", help="registered model; its newest version's run is shown"
    )
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    client = MlflowClient(options.server)
    version = max(
        client.search_model_versions(f"name='{options.model}'"),
        key=lambda found: int(found.version),
    )
    run = client.get_run(version.run_id).info
    page = f"{options.server}/#/experiments/{run.experiment_id}/runs/{run.run_id}"
    pictures = {
        "run.png": (page, "auc_low", ("Show more",)),
        "roc.png": (f"{page}/artifacts/plots/roc.png", "roc.png", ()),
        "model.png": (
            f"{options.server}/#/models/{options.model}/versions/{version.version}",
            "Schema",
            ("Inputs",),
        ),
    }
    sweeps = client.search_runs([run.experiment_id], "tags.job = 'sweep'", max_results=1)
    if sweeps:
        charts = (
            f"{options.server}/#/experiments/{run.experiment_id}/runs"
            f"?viewStateShareKey={sweeps[0].info.run_id}&compareRunsMode=CHART"
            "&workflowType=machine_learning"
        )
        pictures["sweep.png"] = (charts, "Score against parameters", ())
    browser = opened()
    try:
        for name, (address, text, opens) in pictures.items():
            browser.get("about:blank")  # the pages differ behind the "#" only: load each anew
            browser.get(address if "workflowType" in address else address + VIEW)
            WebDriverWait(browser, SECONDS).until(shows(text))
            for button in browser.find_elements(By.CSS_SELECTOR, ASSISTANT):
                button.click()
            for label in opens:
                browser.find_element(
                    By.XPATH, f"//*[starts-with(normalize-space(text()), '{label}')]"
                ).click()
            time.sleep(3)  # charts and pictures come after the text
            browser.save_screenshot(str(options.out / name))
            print(options.out / name, (options.out / name).stat().st_size, address)
    finally:
        browser.quit()


def opened() -> webdriver.Chrome:
    """Start Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def shows(text: str) -> Callable[[webdriver.Chrome], bool]:
    """Return a condition: the page's text contains a text."""
    return lambda browser: text in browser.find_element(By.TAG_NAME, "body").text


if __name__ == "__main__":
    main()
