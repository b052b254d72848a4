#!/usr/bin/env python3
"""That reference.py reads what `config show` and --help print, in the forms of CLI11 2.3 and 2.5."""

import unittest

import reference

CONFIGURATION = """\
daemon:
  # Name of the node; empty: the host
  # name
  name: ""
  # Lanes that this daemon opens [a list: tcp, ucx]
  lanes:
    - tcp
    - ucx
  limits:
    # Bytes per second [a size, such as 64GiB]
    send: 1GiB
"""

HELP = """\
Bring an artifact
Usage: tensorcast get [OPTIONS] artifact

Positionals:
  artifact TEXT REQUIRED      A key or
                              an id
Options:
  -h,--help                   Print this help message and exit
  --device TEXT:FORM_OF_A_LOCATION ...
                              Where: cpu | gpu:N
Common options:
  --json                      Print JSON
"""


class Reference(unittest.TestCase):
    def test_keys_have_their_section_values_and_help(self):
        keys = reference.configuration_keys(CONFIGURATION)
        self.assertEqual(keys, {"daemon": [
            reference.Key("daemon.name", '""', "", "Name of the node; empty: the host name"),
            reference.Key("daemon.lanes", "tcp, ucx", "a list: tcp, ucx", "Lanes that this daemon opens"),
            reference.Key("daemon.limits.send", "1GiB", "a size, such as 64GiB", "Bytes per second"),
        ]})

    def test_help_is_the_same_in_both_forms_of_cli11(self):
        newer = HELP.replace("Usage:", "\n\nUsage:").replace("Positionals:", "\nPOSITIONALS:").replace("\nOptions:", "\n\nOPTIONS:")
        for text in (HELP, newer):
            shown = reference.parse_help(text)
            self.assertEqual((shown.about, shown.usage, shown.footer), ("Bring an artifact", "tensorcast get [OPTIONS] artifact", ""))
            self.assertEqual(shown.sections, {
                "positionals": [reference.Entry("artifact TEXT REQUIRED", "A key or an id")],
                "options": [
                    reference.Entry("-h,--help", "Print this help message and exit"),
                    reference.Entry("--device TEXT:FORM_OF_A_LOCATION ...", "Where: cpu | gpu:N"),
                ],
                "common options": [reference.Entry("--json", "Print JSON")],
            })
            self.assertEqual([entry.name.split()[0] for entry in shown.options()], ["-h,--help", "--device", "--json"])

    def test_cells_keep_their_columns(self):
        self.assertEqual(reference.cell("cpu | <id>\n of it"), "cpu \\| &lt;id> of it")
        self.assertEqual(reference.code("TEXT:{a|b}"), "`TEXT:{a\\|b}`")

    def test_every_metric_of_the_catalogue_is_a_row(self):
        declared = reference.CATALOGUE.read_text(encoding="utf-8").count('"tc_')
        self.assertEqual(reference.metrics().count("| `tc_"), declared)


if __name__ == "__main__":
    unittest.main()
