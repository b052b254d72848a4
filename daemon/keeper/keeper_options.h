// The options of the keeper: whether a process keeps the host pool when the daemon ends, and for how long.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/units.h"

namespace tensorcast::daemon {

struct KeeperOptions {
  std::string kind = "off";                   // or "keeper"
  absl::Duration linger = absl::Minutes(10);  // max time that the keeper waits for a daemon
  // If true, kept replicas that do not fit in the host pool are released. If false, such replicas make the
  // start fail, and the error names them.
  bool discard_kept = false;

  bool on() const { return kind == "keeper"; }
  // The `argv` of KeeperClient: this program's command `keeper`.
  std::vector<std::string> Command(const std::string& socket) const {
    return {"tensorcast", "keeper", absl::StrCat("--linger=", DurationText(linger)),
            absl::StrCat("--socket=", socket)};
  }

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.keep_pool", kind);
    config.Read("daemon.keep_pool_for", linger);
  }
};

}  // namespace tensorcast::daemon
