// The options for a node's disks: the folder of its packed artifacts, and the folders from which it opens
// models. A value type.
#pragma once

#include <string>
#include <vector>

#include "base/config_reader.h"

namespace tensorcast {

struct DiskOptions {
  bool keep_artifacts = true;  // whether the node has a disk tier
  std::string folder;          // the folder of packed files; empty: `artifacts` in the daemon's state folder
  std::vector<std::string> import_roots;  // for ImportRoots::Beneath; empty: no path is opened

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.disk_dir", folder);
    config.Read("daemon.import_roots", import_roots);
  }
  void Validate(Findings& findings) const;
};

}  // namespace tensorcast
