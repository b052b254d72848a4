// on_stand_in_gpus GPUS BYTES COMMAND [ARGUMENT...]: runs a command on a host with GPUS GPUs of BYTES bytes
// each, as programs see it that are linked with the stand-ins. The exit code is the command's.
#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <memory>

#include "absl/strings/numbers.h"
#include "base/units.h"
#include "tests/stand_ins/cuda/host_gpus.h"

extern char** environ;

int main(int argc, char** argv) {
  namespace stand_ins = tensorcast::stand_ins;
  int gpus = 0;
  const absl::StatusOr<uint64_t> bytes = tensorcast::ParseSize(argc > 2 ? argv[2] : "");
  if (argc < 4 || !absl::SimpleAtoi(argv[1], &gpus) || !bytes.ok()) {
    std::fputs("usage: on_stand_in_gpus GPUS BYTES COMMAND [ARGUMENT...]\n", stderr);
    return 2;
  }
  absl::StatusOr<std::unique_ptr<stand_ins::StandInHost>> host = stand_ins::StandInHost::Make(gpus, *bytes);
  if (!host.ok()) {
    std::fprintf(stderr, "%s\n", host.status().ToString().c_str());
    return 1;
  }
  pid_t pid = -1;
  int status = 0;
  const bool started = posix_spawnp(&pid, argv[3], nullptr, nullptr, argv + 3, environ) == 0;
  const bool ended = started && waitpid(pid, &status, 0) == pid;
  if (!started) std::fprintf(stderr, "%s cannot be started\n", argv[3]);
  if (!ended) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
