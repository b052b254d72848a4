// `debug bundle`: collects the records of every reachable node in one archive, to explain a failure. Each
// node and the global store are asked under the caller's own name.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/parallel.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"
#include "proto/records.pb.h"

namespace tensorcast::cli {
namespace {

struct BundleFlags {
  std::string out;  // empty: a name with the time, in the working folder
};

// A node that hangs may cost this much time.
constexpr absl::Duration kAskTimeout = absl::Seconds(5);
// So many nodes are asked at a time.
constexpr size_t kThreads = 8;
// Each node adds up to some MiB; a larger fleet's other nodes are listed as left out.
constexpr size_t kMaxNodes = 256;

// A folder that goes with this object.
class Folder {
 public:
  static absl::StatusOr<std::unique_ptr<Folder>> Make() {
    std::error_code error;
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    if (error) return ErrnoStatus(error.value(), "find", "the folder for temporary files");
    std::string path = (temporary / "tensorcast-bundle-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "make a folder", path);
    return std::unique_ptr<Folder>(new Folder(path));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// A name that another process chose, as the name of one file or folder.
std::string FileName(std::string_view name) {
  std::string file;
  for (const char c : name.substr(0, 100)) {
    file += absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' ? c : '_';
  }
  // This covers "." and ".." as well, so no name leads out of the folder.
  const bool hidden = file.empty() || file.front() == '.';
  return hidden ? absl::StrCat("_", file) : file;
}

std::string TimeText(uint64_t nanoseconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixNanos(static_cast<int64_t>(nanoseconds)),
                          absl::UTCTimeZone());
}

// Collects the files of the bundle below a folder, and what could not be had. Thread-safe.
class Bundle {
 public:
  explicit Bundle(std::string folder) : folder_(std::move(folder)) {}

  void Write(const std::string& name, std::string_view content) ABSL_LOCKS_EXCLUDED(mutex_) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    std::ofstream file(path, std::ios::binary);
    file << content;
    file.close();
    if (!file) {
      LeaveOut(name, absl::UnknownError(absl::StrCat(
                         "write ", path.string(),
                         ": the file cannot be written; check the free space of the folder for temporary "
                         "files (TMPDIR)")));
    }
  }
  void LeaveOut(std::string_view what, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    left_out_.push_back(absl::StrCat(what, ": ", why.message()));
  }
  std::vector<std::string> left_out() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> sorted = left_out_;
    std::ranges::sort(sorted);
    return sorted;
  }

  // What one process said, below `place`.
  // What is missing is never an error of the command: it is listed in left_out.txt, since a bundle is made
  // when parts of a cluster do not answer.
  void AddRecords(const std::string& place, const absl::StatusOr<v1::ProcessRecords>& records) {
    if (!records.ok()) {
      LeaveOut(absl::StrCat(place, ": records, configuration and version"), records.status());
      return;
    }
    Write(absl::StrCat(place, "/version.txt"), absl::StrCat(records->role(), " ", records->version(), "\n"));
    Write(absl::StrCat(place, "/configuration.yaml"), records->configuration());
    const v1::RecordedSlice& slice = records->slice();
    if (!slice.recording()) {
      LeaveOut(absl::StrCat(place, ": spans and log lines"),
               absl::UnavailableError("the flight recorder is off; set observability.recorder.enabled"));
      return;
    }
    std::string lines;
    for (const v1::RecordedLine& line : slice.lines()) {
      constexpr const char* kSeverities[] = {"INFO", "WARNING", "ERROR", "FATAL"};
      absl::StrAppend(&lines, TimeText(line.time_ns()), " ", kSeverities[std::min(line.severity(), 3u)], " ",
                      line.file(), ":", line.line(), " ", Printable(line.message()), "\n");
    }
    v1::RecordedSlice spans;
    *spans.mutable_spans() = slice.spans();
    Write(absl::StrCat(place, "/spans.json"), ToJson(spans));
    Write(absl::StrCat(place, "/log.txt"), lines);
    if (slice.left_out() > 0) {
      LeaveOut(place, absl::ResourceExhaustedError(absl::StrCat(
                          slice.left_out(), " older spans and log lines did not fit into the answer")));
    }
  }

 private:
  const std::string folder_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> left_out_ ABSL_GUARDED_BY(mutex_);
};

// Its status, where it gave one.
absl::StatusOr<v1::GetStatusResponse> AddDaemon(Bundle& bundle, client::AdminClient& daemon,
                                                const std::string& place) {
  absl::StatusOr<v1::GetStatusResponse> status = daemon.GetStatus(InterruptibleContext(kAskTimeout));
  if (status.ok()) {
    bundle.Write(absl::StrCat(place, "/status.json"), ToJson(*status));
  } else {
    bundle.LeaveOut(absl::StrCat(place, ": status"), status.status());
  }
  bundle.AddRecords(place, daemon.ReadRecords(InterruptibleContext(kAskTimeout)));
  return status;
}

absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectTo(const std::string& address,
                                                               client::ClientOptions options) {
  options.daemon = address;
  options.connect_timeout = kAskTimeout;
  return client::AdminClient::Connect(options);
}

// A few nodes at a time, so that those that do not answer cost little together.
void AddNodes(Bundle& bundle, const std::vector<v1::Node>& nodes, const client::ClientOptions& options) {
  ForEachInParallel(nodes.size(), kThreads, [&](size_t i) {
    if (OnTerminationSignal().IsCancelled()) return;
    // The index keeps nodes apart that call themselves the same.
    const std::string place = absl::StrCat("nodes/", i, "-", FileName(nodes[i].name()));
    auto daemon = ConnectTo(nodes[i].grpc_address(), options);
    if (daemon.ok()) {
      AddDaemon(bundle, **daemon, place).IgnoreError();
    } else {
      bundle.LeaveOut(place, daemon.status());
    }
  });
}

// The archive, by the system's tar. Only this user may read it: log lines and addresses are in it.
absl::Status Archive(const std::string& folder, const std::string& out) {
  // The archive never replaces a file that is there.
  const UniqueFd file(open(out.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return ErrnoStatus(errno, "create the archive", out);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // tar writes to the file that is open already.
  posix_spawn_file_actions_adddup2(&actions, file.get(), STDOUT_FILENO);
  const char* const arguments[] = {"tar", "-C", folder.c_str(), "-czf", "-", ".", nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, "tar", &actions, nullptr, const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error == 0) {
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (error == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  // A part of an archive would look like a whole one.
  unlink(out.c_str());
  if (error != 0) {
    const absl::Status why = ErrnoStatus(error, "run", "tar");
    return absl::Status(why.code(), absl::StrCat("create the archive ", out, ": ", why.message(),
                                                 error == ENOENT ? "; install the package tar" : ""));
  }
  if (WIFSIGNALED(status)) {
    return absl::UnknownError(absl::StrCat("create the archive ", out, ": signal ", WTERMSIG(status),
                                           " ended tar; run the command again"));
  }
  return absl::UnknownError(absl::StrCat("create the archive ", out, ": tar ended with code ",
                                         WEXITSTATUS(status),
                                         "; check the free space of the disk of the archive"));
}

void AddCluster(Bundle& bundle, client::AdminClient& own, const client::ClientOptions& options,
                const absl::StatusOr<v1::GetStatusResponse>& status) {
  auto cluster = own.GetClusterStatus(InterruptibleContext(kAskTimeout));
  if (!cluster.ok()) {
    bundle.LeaveOut("the cluster's status and its other nodes", cluster.status());
    return;
  }
  bundle.Write("cluster.json", ToJson(*cluster));
  std::vector<v1::Node> nodes;
  for (const v1::Node& node : cluster->nodes()) {
    // The daemon on this node was asked first, as "this-node".
    if (status.ok() && node.node_id() == status->node().node_id()) continue;
    if (nodes.size() == kMaxNodes) {
      bundle.LeaveOut(
          absl::StrCat("node ", node.name()),
          absl::ResourceExhaustedError(absl::StrCat("a bundle covers at most ", kMaxNodes,
                                                    " other nodes; run the command on the node itself")));
    } else {
      nodes.push_back(node);
    }
  }
  AddNodes(bundle, nodes, options);
}

// Of several the one that leads: the others do not listen.
void AddStore(Bundle& bundle, const v1::GetStatusResponse& status, const client::ClientOptions& options) {
  if (status.global_store() == "embedded") return;  // in the process of the daemon, which was asked
  absl::StatusOr<v1::ProcessRecords> records =
      absl::NotFoundError("the daemon reports no address of a global store; check daemon.global_store");
  // Without SkipEmpty an empty text would give one empty address, which leads to the default daemon.
  for (const std::string_view address : absl::StrSplit(status.global_store(), ',', absl::SkipEmpty())) {
    auto store = ConnectTo(std::string(address), options);
    if (!store.ok()) {
      records = store.status();
      continue;
    }
    records = (*store)->ReadRecords(InterruptibleContext(kAskTimeout));
    if (records.ok()) break;
  }
  bundle.AddRecords("global-store", records);
}

absl::Status MakeBundle(const CommonFlags& common, const BundleFlags& flags) {
  TC_ASSIGN_OR_RETURN(const client::ClientOptions options, ConfiguredClient(common));
  TC_ASSIGN_OR_RETURN(const auto own, client::AdminClient::Connect(options));
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, Folder::Make());
  Bundle bundle(folder->path());
  const absl::StatusOr<v1::GetStatusResponse> status = AddDaemon(bundle, *own, "this-node");
  if (status.ok()) AddStore(bundle, *status, options);
  AddCluster(bundle, *own, options, status);
  if (OnTerminationSignal().IsCancelled()) return absl::CancelledError("make a bundle: interrupted");
  const std::vector<std::string> missing = bundle.left_out();
  bundle.Write("left_out.txt", missing.empty() ? "nothing\n" : absl::StrJoin(missing, "\n") + "\n");
  // Read again, since left_out.txt itself is left out where it cannot be written.
  const std::vector<std::string> left_out = bundle.left_out();
  const std::string out =
      !flags.out.empty()
          ? flags.out
          : absl::StrCat("tensorcast-bundle-",
                         absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone()), ".tar.gz");
  TC_RETURN_IF_ERROR(Archive(folder->path(), out));
  if (common.json) {
    std::printf("%s\n", nlohmann::json({{"file", out}, {"left_out", left_out}})
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
    return absl::OkStatus();
  }
  for (const std::string& what : left_out) PrintF("left out: %s\n", what);
  PrintF("%s\n", out);
  return absl::OkStatus();
}

void AddFlags(Flags& flags, BundleFlags& values) {
  flags.Add("--out", values.out,
            "Archive to create, FILE.tar.gz; default: tensorcast-bundle-TIME.tar.gz in the working folder",
            {.path = true});
}

}  // namespace

Command DebugCommand() {
  return {.name = "debug",
          .help = "Collect what explains a failure",
          .commands = {
              {.name = "bundle",
               .help = "Write status, configuration without secrets, and the newest spans and log lines of "
                       "all reachable nodes to one archive",
               .bind = Bind(AddFlags, MakeBundle)}}};
}

}  // namespace tensorcast::cli
