#include "transport/testing/source_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "transport/testing/test_image.h"

namespace tensorcast::transport {
namespace {

constexpr std::string_view kLine = "descriptor ";

void Serve(Transport& transport, uint64_t image_bytes) {
  TestMemory memory(image_bytes);
  CHECK_OK(transport.RegisterMemory(memory.data(), memory.bytes()));
  const std::vector<HostSpan> segments = Fragment(memory.span(0, image_bytes), uint64_t{3} << 20);
  WritePattern(segments);
  auto serving = transport.Serve(std::make_shared<InPlaceImage>(segments), /*receiver=*/"");
  CHECK_OK(serving.status());
  std::cout << kLine << absl::BytesToHexString((*serving)->descriptor()) << std::endl;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

}  // namespace

bool MaybeRunSourceProcess(int argc, char** argv, const TransportFactory& create) {
  if (argc != 4 || std::string_view(argv[1]) != "--serve") return false;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint64_t image_bytes = 0;
  CHECK(absl::SimpleAtoi(argv[3], &image_bytes));
  const std::unique_ptr<Transport> transport = create(argv[2]);
  Serve(*transport, image_bytes);
  return true;
}

absl::StatusOr<std::unique_ptr<SourceProcess>> SourceProcess::Start(const std::string& lane,
                                                                    uint64_t image_bytes) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe", "for a source process");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const std::string bytes = std::to_string(image_bytes);
  const char* argv[] = {"source", "--serve", lane.c_str(), bytes.c_str(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, const_cast<char**>(argv), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  if (error != 0) return ErrnoStatus(error, "posix_spawn", "/proc/self/exe");
  std::unique_ptr<SourceProcess> process(new SourceProcess(pid, in[1], out[0]));
  TC_RETURN_IF_ERROR(process->ReadDescriptor());
  return process;
}

absl::Status SourceProcess::ReadDescriptor() {
  std::string line;
  char byte;
  while (read(stdout_fd_, &byte, 1) == 1) {
    if (byte != '\n') {
      line.push_back(byte);
      continue;
    }
    std::string_view hex = line;
    if (absl::ConsumePrefix(&hex, kLine)) {
      CHECK(absl::HexStringToBytes(hex, &descriptor_));
      return absl::OkStatus();
    }
    line.clear();
  }
  return absl::InternalError("the source process ended before it printed its descriptor");
}

SourceProcess::~SourceProcess() {
  Kill();
  close(stdin_fd_);
  close(stdout_fd_);
}

void SourceProcess::Kill() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

void SourceProcess::Stop() {
  kill(pid_, SIGSTOP);
  int status = 0;
  PCHECK(waitpid(pid_, &status, WUNTRACED) == pid_);
  CHECK(WIFSTOPPED(status));
}

void SourceProcess::Continue() { kill(pid_, SIGCONT); }

}  // namespace tensorcast::transport
