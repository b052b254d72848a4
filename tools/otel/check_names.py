#!/usr/bin/env python3
"""Checks the files of this folder: they parse, and every metric and label that they name is in the catalogue.

Usage: check_names.py README_WITH_THE_CATALOGUE FOLDER. Prints what is wrong, one line each; exits 1 if anything is.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

# Of a process or of Prometheus itself, not of a metric of ours.
COMMON_LABELS = {"le", "service_name", "service_instance_id", "severity"}
METRIC = re.compile(r"\btc_[a-z0-9_]+")
SELECTOR = re.compile(r"(tc_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
TEMPLATE = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")
HISTOGRAM_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def read_catalogue(readme):
    catalogue = {}
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1].startswith("`tc_"):
            labels = {label.strip() for label in cells[4].split(",") if label.strip()}
            catalogue[cells[1].strip("`")] = (cells[2], labels)
    return catalogue


def resolve(name, catalogue):
    """The catalogue's name of a series' metric, or None."""
    if name in catalogue:
        return name
    base = HISTOGRAM_SUFFIX.sub("", name)
    if base != name and base in catalogue and catalogue[base][0] == "histogram":
        return base
    return None


def check_expression(expression, texts, catalogue):
    """`texts`: where the expression's labels are used, such as a legend."""
    names = set(METRIC.findall(expression))
    known = {name: resolve(name, catalogue) for name in names}
    problems = [f"no metric {name} in the catalogue" for name, found in known.items() if found is None]
    if not names:
        problems.append(f"no metric of ours in {expression!r}")
    labels = set(COMMON_LABELS)
    for found in filter(None, known.values()):
        labels |= catalogue[found][1]
    for name, selector in SELECTOR.findall(expression):
        found = known.get(name)
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)", selector):
            if found and label not in catalogue[found][1] | COMMON_LABELS:
                problems.append(f"{name} has no label {label}")
    used = [label.strip() for group in GROUPING.findall(expression) for label in group.split(",")]
    used += [label for text in texts for label in TEMPLATE.findall(text)]
    problems += [f"no label {label} on the metrics of {expression!r}" for label in used if label not in labels]
    return problems


def read_dashboard(folder):
    return json.loads((folder / "grafana" / "dashboard.json").read_text())


def expressions_of(folder):
    import yaml

    for panel in read_dashboard(folder)["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], [target["legendFormat"]]
    for group in yaml.safe_load((folder / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], list(rule["annotations"].values())


def check_compose(where, content, folder):
    problems = []
    services = content["services"]
    for name, service in services.items():
        image, _, version = service["image"].partition(":")
        if version in ("", "latest"):
            problems.append(f"{where}: {name} runs whatever {image} is at the time")
        problems += [f"{where}: {name} waits for {other}, which is not declared"
                     for other in service.get("depends_on", []) if other not in services]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith(".") and not (folder / source).is_file():
                problems.append(f"{where}: {name} mounts {source}, which is not there")
            if not source.startswith(".") and source not in content.get("volumes", {}):
                problems.append(f"{where}: {name} mounts the volume {source}, which is not declared")
    return problems


def check_collector(where, content):
    problems = []
    for name, pipeline in content["service"]["pipelines"].items():
        for kind in ("receivers", "processors", "exporters"):
            problems += [f"{where}: pipeline {name} uses {kind} {part}, which is not declared"
                         for part in pipeline[kind] if part not in content[kind]]
    for name, exporter in content["exporters"].items():
        # The catalogue's names have their units and _total already.
        if name.split("/")[0] == "prometheus" and exporter.get("add_metric_suffixes") is not False:
            problems.append(f"{where}: exporter {name} would add suffixes to the names of metrics")
    return problems


def check_files(folder):
    import yaml

    problems = []
    files = {str(path.relative_to(folder)): yaml.safe_load(path.read_text())
             for path in sorted(folder.rglob("*.yaml"))}
    for where, content in files.items():
        if not isinstance(content, dict):
            problems.append(f"{where}: not a mapping")
        elif where.startswith("compose-"):
            problems += check_compose(where, content, folder)
        elif "pipelines" in content.get("service", {}):
            problems += check_collector(where, content)
    for path in sorted(folder.rglob("*.xml")):
        xml.etree.ElementTree.parse(path)
    sources = {source["uid"] for source in files["grafana/datasources.yaml"]["datasources"]}
    for panel in read_dashboard(folder)["panels"]:
        if panel["datasource"]["uid"] not in sources:
            problems.append(f"{panel['title']}: no data source {panel['datasource']['uid']}")
    return problems


def main():
    catalogue = read_catalogue(pathlib.Path(sys.argv[1]))
    folder = pathlib.Path(sys.argv[2])
    problems = [] if catalogue else ["the catalogue is empty"]
    problems += check_files(folder)
    for where, expression, texts in expressions_of(folder):
        problems += [f"{where}: {problem}" for problem in check_expression(expression, texts, catalogue)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
