#include "core/device/testing/ipc_peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "core/device/fake_device.h"

extern char** environ;

namespace tensorcast::testing {
namespace {

constexpr char kRoleFlag[] = "--ipc-peer";
constexpr uint64_t kPeerBytes = uint64_t{4} << 20;

absl::Status RunImport(DeviceRuntime& runtime, const IpcHandle& handle) {
  TC_ASSIGN_OR_RETURN(const DevicePtr memory, runtime.OpenIpc(handle));
  TC_ASSIGN_OR_RETURN(const DevicePtr again, runtime.OpenIpc(handle));
  TC_RETURN_IF_ERROR(runtime.CloseIpc(again));  // the first opening stays good
  TC_ASSIGN_OR_RETURN(const std::vector<std::byte> seen, Download(runtime, memory, handle.bytes));
  if (seen != Pattern(1, handle.bytes)) return absl::DataLossError("the exporter's bytes are not there");
  TC_RETURN_IF_ERROR(Upload(runtime, memory, Pattern(2, handle.bytes)));
  TC_RETURN_IF_ERROR(runtime.CloseIpc(memory));
  if (Download(runtime, memory, 1).ok()) return absl::InternalError("closed memory can still be read");
  puts("done");
  return absl::OkStatus();
}

absl::Status RunExport(DeviceRuntime& runtime, bool stale) {
  TC_ASSIGN_OR_RETURN(const DevicePtr memory, runtime.Allocate(0, kPeerBytes));
  TC_RETURN_IF_ERROR(Upload(runtime, memory, Pattern(1, kPeerBytes)));
  TC_ASSIGN_OR_RETURN(const IpcHandle handle, runtime.Export(memory));
  if (stale) {
    TC_RETURN_IF_ERROR(runtime.Free(memory));
    TC_RETURN_IF_ERROR(runtime.Allocate(0, kPeerBytes).status());
  }
  puts(HandleToText(handle).c_str());
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return absl::OkStatus();
}

absl::Status RunRole(std::string_view backend, std::string_view role, const IpcHandle& handle) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRuntime> runtime, MakeRuntime(backend));
  if (role == "import") return RunImport(*runtime, handle);
  if (role == "export" || role == "stale") return RunExport(*runtime, role == "stale");
  return absl::InvalidArgumentError(absl::StrCat("no role ", role));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeRuntime(std::string_view backend) {
  if (backend == "cuda") return CreateCudaRuntime();
  return CreateFakeRuntime({.device_count = 2, .device_bytes = uint64_t{64} << 20});
}

absl::StatusOr<std::unique_ptr<IpcPeer>> IpcPeer::Start(std::string_view backend, std::string_view role,
                                                        const IpcHandle& handle) {
  int input[2];
  int output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe2", "for a peer");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<std::string> words = {"ipc_peer", kRoleFlag, std::string(backend), std::string(role),
                                    HandleToText(handle)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  if (error == 0) return std::unique_ptr<IpcPeer>(new IpcPeer(pid, input[1], output[0]));
  close(input[1]);
  close(output[0]);
  return ErrnoStatus(error, "posix_spawn", "of a peer");
}

IpcPeer::~IpcPeer() {
  if (pid_ > 0) Kill();
  if (input_ >= 0) close(input_);
  close(output_);
}

std::string IpcPeer::ReadLine() {
  std::string line;
  char c;
  while (read(output_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

int IpcPeer::Finish() {
  close(std::exchange(input_, -1));
  return Reap();
}

void IpcPeer::Kill() {
  kill(pid_, SIGKILL);
  Reap();
}

int IpcPeer::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string HandleToText(const IpcHandle& handle) {
  return absl::StrCat(handle.device_uuid, ":", absl::BytesToHexString(handle.opaque), ":", handle.bytes);
}

IpcHandle HandleFromText(std::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, ':');
  IpcHandle handle;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &handle.bytes)) return handle;
  handle.device_uuid = fields[0];
  CHECK(absl::HexStringToBytes(fields[1], &handle.opaque)) << text;
  return handle;
}

}  // namespace tensorcast::testing

int main(int argc, char** argv) {
  using namespace tensorcast::testing;
  if (argc == 5 && std::string_view(argv[1]) == kRoleFlag) {
    const absl::Status status = RunRole(argv[2], argv[3], HandleFromText(argv[4]));
    if (!status.ok()) fprintf(stderr, "ipc peer: %s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
