#include "cli/doctor/finding.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tensorcast::doctor {
namespace {

constexpr std::array<Level, 3> kWorstFirst = {Level::kFail, Level::kWarn, Level::kOk};

size_t CountOf(const FindingList& findings, Level level) {
  return static_cast<size_t>(std::ranges::count(findings, level, &Finding::level));
}

std::string LineOf(const Finding& finding) {
  // Capital letters for what needs a person, as in `status`.
  const std::string_view level = finding.level == Level::kFail ? "FAIL" : LevelName(finding.level);
  return absl::StrFormat("  %-4s  %-14s  %s%s%s\n", level, finding.check, finding.found,
                         finding.change.empty() ? "" : "; ", finding.change);
}

}  // namespace

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "fail";
  }
  return "";
}

bool AnyFailed(const FindingList& findings) { return CountOf(findings, Level::kFail) > 0; }

std::string ToText(const FindingList& findings, bool verbose) {
  // The lists are short (some findings per node), so they are searched and not sorted: subjects keep the
  // order of the checks.
  std::vector<std::string_view> subjects;
  for (const Finding& finding : findings) {
    if (std::ranges::find(subjects, finding.subject) == subjects.end()) subjects.push_back(finding.subject);
  }
  std::string text;
  for (const std::string_view subject : subjects) {
    std::string lines;
    for (const Level level : kWorstFirst) {
      if (level == Level::kOk && !verbose) continue;
      for (const Finding& finding : findings) {
        if (finding.subject == subject && finding.level == level) lines += LineOf(finding);
      }
    }
    if (!lines.empty()) absl::StrAppend(&text, subject, "\n", lines, "\n");
  }
  absl::StrAppend(&text, CountOf(findings, Level::kFail), " failed, ", CountOf(findings, Level::kWarn),
                  " to look at, ", CountOf(findings, Level::kOk), " ok\n");
  return text;
}

nlohmann::json ToJson(const FindingList& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", LevelName(finding.level)},
                    {"subject", finding.subject},
                    {"check", finding.check},
                    {"found", finding.found},
                    {"change", finding.change}});
  }
  return list;
}

}  // namespace tensorcast::doctor
