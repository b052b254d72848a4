// The findings of `tensorcast doctor`, and how they are shown. Pure functions and values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorcast::doctor {

enum class Level : uint8_t { kOk, kWarn, kFail };
std::string_view LevelName(Level level);  // "ok", "warn", "fail"

struct Finding {
  Level level = Level::kOk;
  std::string subject;  // a node's name, "global store", "this host"
  std::string check;    // one or two words
  std::string found;
  std::string change;  // a remedy as an imperative sentence; empty if ok
};

using FindingList = std::vector<Finding>;

// Adds the findings of one check of one subject.
class Check {
 public:
  Check(std::string subject, std::string name, FindingList& out)
      : subject_(std::move(subject)), name_(std::move(name)), out_(out) {}

  void Ok(std::string found) const { Add(Level::kOk, std::move(found), ""); }
  void Warn(std::string found, std::string change) const {
    Add(Level::kWarn, std::move(found), std::move(change));
  }
  void Fail(std::string found, std::string change) const {
    Add(Level::kFail, std::move(found), std::move(change));
  }
  void Add(Level level, std::string found, std::string change) const {
    out_.push_back({level, subject_, name_, std::move(found), std::move(change)});
  }

 private:
  const std::string subject_;
  const std::string name_;
  FindingList& out_;
};

bool AnyFailed(const FindingList& findings);

// The findings grouped by subject, in the order in which subjects first appear; within a subject the worst
// findings come first. Shows ok findings only with `verbose`. The last line counts the findings.
std::string ToText(const FindingList& findings, bool verbose);
// A list of objects: level, subject, check, found, change.
nlohmann::json ToJson(const FindingList& findings);

}  // namespace tensorcast::doctor
