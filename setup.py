"Packaging: everything but the layout of data/ is read from settings.ini."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

ini = ConfigParser(delimiters=["="])
ini.read("settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]

# the description on PyPI shows pictures only by their full address
pictures = "https://raw.githubusercontent.com/chess-grpo/chess_grpo/main/nbs/images/"
readme = Path("README.md").read_text(encoding="utf-8").replace("](nbs/images/", f"]({pictures}")

setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"],
    author=cfg["author"], author_email=cfg["author_email"], url=cfg["git_url"],
    license="Apache-2.0", keywords=cfg["keywords"].split(), python_requires=">=" + cfg["min_python"],
    long_description=readme, long_description_content_type="text/markdown",
    packages=[*find_packages(include=["chess_grpo", "chess_grpo.*"]), "chess_grpo.data"],
    package_dir={"chess_grpo.data": "data"}, package_data={"chess_grpo.data": ["**/*"]},
    install_requires=cfg["requirements"].split(),
    extras_require={x: cfg[f"{x}_requirements"].split() for x in ("text", "ray", "dev")},
    entry_points={"console_scripts": cfg["console_scripts"].split()},
)
