#!/usr/bin/env python3
"""Checks that the files of this folder parse, and that every metric and label in them is in the catalogue.

A Collector translates names for Prometheus, with or without suffixes for unit and kind. Both translations must give the names
of the catalogue. The dashboard and the rules are checked against both. docs/operations.md must explain every alert.

Usage: check_names.py CATALOGUE_PAGE FOLDER. The page is docs/reference/metrics.md. Prints one line per problem, and exits
with 1 if there is any.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

OPERATIONS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md"
# Labels of Prometheus itself, not of our metrics.
OWN_LABELS = {"le", "severity", "job", "instance"}
CHOSEN = re.compile(r"keep_keys\(resource\.attributes, \[([^\]]*)\]\)")
METRIC = re.compile(r"\btc_[a-z0-9_]+")
SELECTOR = re.compile(r"(tc_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
TEMPLATE = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")
HISTOGRAM_SUFFIX = re.compile(r"_(bucket|sum|count)$")

# Strategies of the Collector's Prometheus exporter: the default, and the one of the collector files here.
WITH_SUFFIXES = "UnderscoreEscapingWithSuffixes"
WITHOUT_SUFFIXES = "UnderscoreEscapingWithoutSuffixes"
# The first version of the Collector (contrib) with translation_strategy.
OLDEST_COLLECTOR = (0, 132, 0)

# Prometheus' words for UCUM's units, and for the unit after the slash of a rate.
UNIT_WORDS = {"By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "s": "seconds",
              "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "min": "minutes", "h": "hours",
              "d": "days", "Hz": "hertz", "W": "watts", "J": "joules", "V": "volts", "A": "amperes", "g": "grams",
              "m": "meters", "Cel": "celsius", "%": "percent", "1": ""}
PER_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def chosen_attributes(text):
    """The resource attributes that a collector file makes labels of."""
    return [name for names in CHOSEN.findall(text) for name in re.findall(r'"([^"]+)"', names)]


COMMON_LABELS = OWN_LABELS | {name.replace(".", "_") for name in chosen_attributes(
    pathlib.Path(__file__).with_name("collector-dev.yaml").read_text())}


def read_catalogue(readme):
    catalogue = {}
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1].startswith("`tc_"):
            labels = {label.strip() for label in cells[4].split(",") if label.strip()}
            catalogue[cells[1].strip("`")] = (cells[2], labels, cells[3])
    return catalogue


def unit_words(unit):
    """The words that a unit adds to a name: its own, and "per_" with that of a rate. An annotation in braces adds none."""
    main, _, per = (part.strip() for part in unit.partition("/"))
    main = "" if set("{}") & set(main) else UNIT_WORDS.get(main, main)
    per = "" if set("{}") & set(per) else PER_WORDS.get(per, per)
    return main, "per_" + per if per else ""


def translate(name, kind, unit, strategy):
    """The name in Prometheus, by the rules of OpenTelemetry for compatibility with Prometheus."""
    words = [word for word in re.split(r"[^A-Za-z0-9:]", name) if word]
    if strategy == WITH_SUFFIXES:
        # A suffix is left out if the name has that word. "per_second" is two words, so it is never left out.
        words += [suffix for suffix in unit_words(unit) if suffix and suffix not in words]
        last = ""
        if kind.startswith("counter"):
            last = "total"
        elif unit == "1" and kind in ("gauge", "up-down counter"):
            last = "ratio"
        words = [word for word in words if word != last] + ([last] if last else [])
    return "_".join(words)


def check_catalogue(catalogue):
    problems = []
    for name, (kind, _, unit) in catalogue.items():
        for strategy in (WITH_SUFFIXES, WITHOUT_SUFFIXES):
            translated = translate(name, kind, unit, strategy)
            if translated != name:
                problems.append(f"{name} of unit {unit} is {translated} with {strategy}")
        # Some translators look only at the end of a name.
        main, _ = unit_words(unit)
        if main and not name.removesuffix("_total").endswith("_" + main):
            problems.append(f"{name} does not end in its unit, {main}")
    return problems


def translate_catalogue(catalogue, strategy):
    return {translate(name, kind, unit, strategy): (kind, labels, unit)
            for name, (kind, labels, unit) in catalogue.items()}


def resolve(name, catalogue):
    """The catalogue's name of a series' metric, or None."""
    if name in catalogue:
        return name
    base = HISTOGRAM_SUFFIX.sub("", name)
    if base != name and base in catalogue and catalogue[base][0] == "histogram":
        return base
    return None


def check_expression(expression, texts, catalogue):
    """`texts`: texts that use the expression's labels, such as a legend."""
    names = set(METRIC.findall(expression)) - COMMON_LABELS
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

    dashboard = read_dashboard(folder)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], [target["legendFormat"]]
    for variable in dashboard["templating"]["list"]:
        yield f"variable {variable['name']}", variable["query"], []
    for group in yaml.safe_load((folder / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], list(rule["annotations"].values())


def version_of(text):
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def check_compose(where, content, folder):
    problems = []
    services = content["services"]
    for name, service in services.items():
        image, _, version = service["image"].partition(":")
        if image.startswith("otel/opentelemetry-collector") and version_of(version) < OLDEST_COLLECTOR:
            problems.append(f"{where}: {name} is a Collector of version {version}, which does not know "
                            "translation_strategy")
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


def check_collector(where, content, text):
    problems = []
    for name, pipeline in content["service"]["pipelines"].items():
        for kind in ("receivers", "processors", "exporters"):
            problems += [f"{where}: pipeline {name} uses {kind} {part}, which is not declared"
                         for part in pipeline[kind] if part not in content[kind]]
    for name, exporter in content["exporters"].items():
        if name.split("/")[0] != "prometheus":
            continue
        problems += [f"{where}: pipeline {pipeline} offers labels that transform/labels did not choose"
                     for pipeline, parts in content["service"]["pipelines"].items()
                     if name in parts["exporters"] and "transform/labels" not in parts["processors"]]
        # The names in the catalogue already have their units and _total. From 0.154.0 on add_metric_suffixes is ignored.
        if exporter.get("translation_strategy") != WITHOUT_SUFFIXES or "add_metric_suffixes" in exporter:
            problems.append(f"{where}: exporter {name} would add suffixes to the names of metrics: set "
                            f"translation_strategy to {WITHOUT_SUFFIXES} alone")
        if not chosen_attributes(text):
            problems.append(f"{where}: exporter {name} would make labels of all resource attributes")
        if "service.instance.id" in text and "process.pid" in chosen_attributes(text):
            problems.append(f"{where}: the label process.pid would make new series with each restart")
        if ".".join(map(str, OLDEST_COLLECTOR)) not in text:
            problems.append(f"{where}: the oldest version of the Collector that knows its settings is not named")
    return problems


def check_files(folder):
    import yaml

    problems = []
    texts = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.yaml"))}
    files = {where: yaml.safe_load(text) for where, text in texts.items()}
    for where, content in files.items():
        if not isinstance(content, dict):
            problems.append(f"{where}: not a mapping")
        elif where.startswith("compose-"):
            problems += check_compose(where, content, folder)
        elif "pipelines" in content.get("service", {}):
            problems += check_collector(where, content, texts[where])
    for path in sorted(folder.rglob("*.xml")):
        xml.etree.ElementTree.parse(path)
    sources = {source["uid"] for source in files["grafana/datasources.yaml"]["datasources"]}
    for panel in read_dashboard(folder)["panels"]:
        if panel["datasource"]["uid"] not in sources:
            problems.append(f"{panel['title']}: no data source {panel['datasource']['uid']}")
    return problems


def check_alerts(folder):
    """A section for each alert, which names it, and an alert for each section."""
    import yaml

    rules = {rule["alert"]: rule for group in yaml.safe_load((folder / "alerts.yaml").read_text())["groups"]
             for rule in group["rules"]}
    explained = set(re.findall(r"^### (TensorCast\w+)$", OPERATIONS.read_text(), re.MULTILINE))
    return [f"docs/operations.md does not explain the alert {alert}" for alert in sorted(set(rules) - explained)] + [
        f"docs/operations.md explains the alert {alert}, which does not exist" for alert in sorted(explained - set(rules))] + [
        f"the alert {alert} does not link to its section, {runbook_of(alert)}" for alert, rule in sorted(rules.items())
        if rule["annotations"].get("runbook") != runbook_of(alert)]


def runbook_of(alert):
    return f"docs/operations.md#{alert.lower()}"


def main():
    catalogue = read_catalogue(pathlib.Path(sys.argv[1]))
    folder = pathlib.Path(sys.argv[2])
    problems = [] if catalogue else ["the catalogue is empty"]
    problems += check_catalogue(catalogue)
    problems += check_files(folder)
    problems += check_alerts(folder)
    for strategy in (WITH_SUFFIXES, WITHOUT_SUFFIXES):
        translated = translate_catalogue(catalogue, strategy)
        for where, expression, texts in expressions_of(folder):
            problems += [f"{where} with {strategy}: {problem}"
                         for problem in check_expression(expression, texts, translated)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
