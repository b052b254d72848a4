#include "tools/workshop/chaos/footprint.h"

#include <filesystem>
#include <fstream>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast::chaos {
namespace {

// gRPC starts threads for a crowd of calls and keeps them for a while: up to a few dozen, however many calls
// there were.
constexpr int kGrpcThreads = 24;

namespace fs = std::filesystem;

// "socket:[123]" -> "socket", "anon_inode:[eventfd]" -> "eventfd", "/memfd:name (deleted)" -> "memfd".
std::string KindOf(const std::string& target) {
  if (absl::StartsWith(target, "/memfd:")) return "memfd";
  if (absl::StartsWith(target, "anon_inode:")) {
    std::string kind = target.substr(sizeof("anon_inode:") - 1);
    std::erase_if(kind, [](char c) { return c == '[' || c == ']'; });
    return kind;
  }
  if (const size_t colon = target.find(":["); colon != std::string::npos) return target.substr(0, colon);
  return "file";
}

}  // namespace

int Footprint::descriptor_count() const {
  int count = 0;
  for (const auto& [kind, number] : descriptors) count += number;
  return count;
}

std::string Footprint::ToString() const {
  return absl::StrCat(threads, " threads, ", memfd_mappings, " mappings of memfds, ", descriptor_count(),
                      " descriptors (", absl::StrJoin(descriptors, ", ", absl::PairFormatter(" ")), ")");
}

absl::StatusOr<Footprint> MeasureFootprint(pid_t pid) {
  const std::string process = absl::StrCat("/proc/", pid);
  Footprint footprint;
  std::error_code error;
  // The process runs on meanwhile: a descriptor that closes between the listing and the look is left out.
  for (fs::directory_iterator it(process + "/fd", error), end; !error && it != end; it.increment(error)) {
    std::error_code closed_meanwhile;
    const fs::path target = fs::read_symlink(it->path(), closed_meanwhile);
    if (!closed_meanwhile) ++footprint.descriptors[KindOf(target.string())];
  }
  if (!error) {
    for (fs::directory_iterator it(process + "/task", error), end; !error && it != end; it.increment(error)) {
      ++footprint.threads;
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " cannot be looked at: ", error.message()));
  }
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "/memfd:")) ++footprint.memfd_mappings;
  }
  return footprint;
}

absl::Status CompareFootprints(const Footprint& before, const Footprint& now, int slack) {
  if (now.descriptor_count() <= before.descriptor_count() + slack &&
      now.threads <= before.threads + slack + kGrpcThreads &&
      now.memfd_mappings <= before.memfd_mappings + slack) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("holds more than before: ", before.ToString(), "; now ",
                                          now.ToString(), "; ", slack, " more of each are let pass, and ",
                                          kGrpcThreads, " threads of gRPC"));
}

}  // namespace tensorcast::chaos
