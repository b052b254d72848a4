#include "cli/doctor/diagnosis.h"

#include "absl/strings/str_cat.h"
#include "cli/doctor/cluster_checks.h"
#include "cli/doctor/node_checks.h"
#include "cli/output/output.h"

namespace tensorcast::doctor {
namespace {

using cli::FormatBytes;

constexpr char kHere[] = "this host";

void CheckSocketFolder(const SocketFolderFacts& folder, FindingList& out) {
  const Check check(kHere, "sockets", out);
  if (!folder.exists) return check.Ok(absl::StrCat("there is no folder ", folder.path));
  if (folder.listens.ok()) return check.Ok(absl::StrCat("a daemon listens in ", folder.path));
  if (absl::IsPermissionDenied(folder.listens)) {
    return check.Warn(
        absl::StrCat("a daemon in ", folder.path, " refuses this user"),
        "run this command as the daemon's user, or as a member of a group of daemon.handle_groups");
  }
  check.Ok(absl::StrCat("no daemon listens in ", folder.path));
}

}  // namespace

void CheckDaemon(const Facts& facts, FindingList& out) {
  const Check check(kHere, "daemon", out);
  if (facts.answer.ok()) return check.Ok(absl::StrCat("answers at ", facts.daemon));
  const std::string where = facts.daemon.empty() ? "" : absl::StrCat(" at ", facts.daemon);
  check.Fail(absl::StrCat("no daemon answers", where, ": ", facts.answer.message()),
             "start a daemon with `tensorcast daemon`, or name a running daemon with --daemon");
  for (const SocketFolderFacts& folder : facts.socket_folders) CheckSocketFolder(folder, out);
}

void CheckDisk(const Facts& facts, FindingList& out) {
  if (!facts.disk.has_value()) return;
  const Check check(kHere, "disk", out);
  if (!facts.disk->ok()) {
    return check.Warn(
        absl::StrCat("not checked: ", facts.disk->status().message()),
        "run this command as the daemon's user, or give the daemon's configuration with --config");
  }
  const DiskFacts& disk = **facts.disk;
  const std::string found = absl::StrCat(FormatBytes(disk.available_bytes), " of ", FormatBytes(disk.bytes),
                                         " is free where packed artifacts lie (", disk.folder, ")");
  const std::string change = "free space on that disk, or set daemon.disk_dir to a folder on a larger disk";
  // The limits are 1 % and 10 %: packing an artifact writes a whole image.
  if (disk.available_bytes < disk.bytes / 100) return check.Fail(found, change);
  if (disk.available_bytes < disk.bytes / 10) return check.Warn(found, change);
  check.Ok(found);
}

FindingList Diagnose(const Facts& facts) {
  FindingList findings;
  CheckDaemon(facts, findings);
  CheckDisk(facts, findings);
  // Everything below was asked through the daemon: without its answer nothing is known of the store and the
  // nodes.
  if (!facts.answer.ok()) return findings;
  CheckGlobalStore(facts, findings);
  CheckAnswers(facts, findings);
  for (const NodeFacts& node : facts.nodes) {
    if (facts.cluster.ok()) CheckListing(node, findings);
    if (node.status.ok()) CheckNode(node, facts.now, findings);
  }
  CheckReachability(facts, findings);
  CheckVersions(facts, findings);
  if (facts.nodes_left_out > 0) {
    Check("cluster", "nodes", findings)
        .Warn(absl::StrCat(facts.nodes_left_out, " nodes were not checked: this command checks at most ",
                           facts.nodes.size(), " nodes"),
              "run `tensorcast doctor` on those nodes");
  }
  return findings;
}

}  // namespace tensorcast::doctor
