// A certificate authority that lives as long as a benchmark's cluster, so that what certificates cost can be
// measured. Thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "security/authority.h"
#include "security/identity.h"

namespace tensorcast::bench {

class BenchCertificates {
 public:
  // In a folder of its own below `folder`. Errors as ErrnoStatus.
  static absl::StatusOr<BenchCertificates> Make(const std::string& folder);

  // A certificate for "node/a" in files; who has it.
  absl::StatusOr<security::Identity::Files> Issue(std::string_view name) const;
  // The same as a process's settings.
  absl::StatusOr<std::vector<std::string>> SettingsFor(std::string_view name) const;

 private:
  BenchCertificates(std::string folder, security::CertifiedKey authority);

  std::string folder_;
  security::CertifiedKey authority_;
};

}  // namespace tensorcast::bench
