// A client process that dies or stops in the middle of a put: put_client DAEMON KEY MIB SIGNAL [--ready-fd
// N]. It puts two tensors of so many MiB each. The memory of the second cannot be read at first: touching it
// sends this process the signal (0: none), and where it goes on the memory can be read. "touched" is written
// to the descriptor before. Exits with 0 when the put succeeded, else with its status code.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tensorcast/client.h"

namespace {

void* g_memory = nullptr;
size_t g_bytes = 0;
std::atomic<int> g_signal = 0;
std::atomic<int> g_ready = -1;

// Only calls that a signal handler may make.
void OnTouched(int, siginfo_t* info, void*) {
  const auto* address = static_cast<std::byte*>(info->si_addr);
  const auto* begin = static_cast<std::byte*>(g_memory);
  if (address < begin || address >= begin + g_bytes) _exit(99);
  if (const int ready = g_ready.exchange(-1); ready >= 0) {
    if (write(ready, "touched\n", 8) != 8) _exit(98);
  }
  // The first thread alone: another one would stop a process that has gone on.
  if (const int signal = g_signal.exchange(0); signal != 0) raise(signal);
  mprotect(g_memory, g_bytes, PROT_READ);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7) return 97;
  g_bytes = size_t{1} << 20;
  g_bytes *= std::strtoul(argv[3], nullptr, 10);
  g_signal = std::atoi(argv[4]);
  if (argc == 7) g_ready = std::atoi(argv[6]);
  g_memory = mmap(nullptr, g_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (g_memory == MAP_FAILED) return 96;
  struct sigaction action{};
  action.sa_sigaction = OnTouched;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);

  const auto client = tensorcast::client::Client::Connect({.daemon = argv[1]});
  if (!client.ok()) return static_cast<int>(client.status().code());
  const std::vector<std::byte> first(g_bytes, std::byte{7});
  const tensorcast::client::PutTensor tensors[] = {
      {.name = "first", .dtype = tensorcast::DType::kU8, .shape = {g_bytes}, .bytes = first},
      {.name = "second",
       .dtype = tensorcast::DType::kU8,
       .shape = {g_bytes},
       .bytes = {static_cast<std::byte*>(g_memory), g_bytes}}};
  const auto put = (*client)->Put(tensorcast::RequestContext::Background(absl::Seconds(60)), tensors, {},
                                  {.key = argv[2]});
  std::fprintf(stderr, "%s\n", put.status().ToString().c_str());
  return static_cast<int>(put.status().code());
}
