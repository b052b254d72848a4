// The names of the metadata keys in etcd (FORMAT.md), below a cluster's prefix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "global_store/metadata/fact_records.h"

namespace tensorcast::global_store::etcd {

// The version of the format of all keys below `<prefix>/`.
inline constexpr std::string_view kFormat = "2";

class Keys {
 public:
  explicit Keys(const std::string& prefix) : root_(absl::StrCat(prefix, "/")) {}

  std::string Format() const { return root_ + "format"; }
  std::string Leader() const { return root_ + "leader"; }
  std::string Members() const { return root_ + "members/"; }
  std::string Member(int64_t lease) const { return absl::StrFormat("%s%016x", Members(), lease); }
  std::string Epoch() const { return root_ + "epoch"; }
  std::string Sequence() const { return root_ + "sequence"; }

  std::string Facts(FactKind kind) const {
    constexpr std::string_view kFolders[] = {"artifacts/", "keys/",      "nodes/",        "tasks/",
                                             "cluster/",   "followers/", "announcements/"};
    return absl::StrCat(root_, kFolders[static_cast<size_t>(kind)]);
  }
  std::string Manifests() const { return root_ + "manifests/"; }
  std::string Pieces() const { return root_ + "pieces/"; }
  std::string PiecesOf(std::string_view artifact) const { return absl::StrCat(Pieces(), artifact, "/"); }
  std::string PiecesOf(std::string_view artifact, uint64_t writing) const {
    return absl::StrFormat("%s%016x/", PiecesOf(artifact), writing);
  }
  std::string Requests() const { return root_ + "requests/"; }
  // An index of the requests by time.
  std::string RequestAges() const { return root_ + "request_ages/"; }
  std::string RequestAge(int64_t recorded_ns, std::string_view request) const {
    return absl::StrFormat("%s%016x/%s", RequestAges(), recorded_ns, request);
  }

 private:
  std::string root_;
};

// The key after all keys that begin with `prefix`: the end of their range. REQUIRES: `prefix` ends in '/'.
inline std::string EndOf(std::string prefix) {
  prefix.back() = '/' + 1;
  return prefix;
}

}  // namespace tensorcast::global_store::etcd
