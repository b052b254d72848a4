#include "core/memory/numa_policy.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <vector>

#include "absl/log/log.h"

namespace tensorcast {
namespace {

// glibc has no wrappers for these calls. libnuma has, but it would be a dependency for two lines.
constexpr int kMaskBits = CHAR_BIT * sizeof(unsigned long);
constexpr int kMaxNodes = 1024;  // the max that Linux can be built for

}  // namespace

void PreferNumaNode(std::byte* base, uint64_t bytes, int node) {
  if (node < 0 || node >= kMaxNodes) return;
  std::vector<unsigned long> nodes(kMaxNodes / kMaskBits);
  nodes[node / kMaskBits] = 1UL << (node % kMaskBits);
  // One bit more than there are: the kernel takes one off.
  if (syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes.data(), kMaxNodes + 1, 0) != 0) {
    LOG_FIRST_N(WARNING, 1) << "place memory on NUMA node " << node
                            << ", near the GPUs of that node: mbind: " << strerror(errno)
                            << "; in a container, add the capability CAP_SYS_NICE";
  }
}

std::optional<int> PreferredNumaNode(const std::byte* address) {
  int mode = 0;
  std::vector<unsigned long> nodes(kMaxNodes / kMaskBits);
  // The policy of the mapping is asked, not where pages lie: that also answers for pages that do not exist
  // yet.
  if (syscall(SYS_get_mempolicy, &mode, nodes.data(), kMaxNodes + 1, address, MPOL_F_ADDR) != 0 ||
      mode != MPOL_PREFERRED) {
    return std::nullopt;
  }
  for (int node = 0; node < kMaxNodes; ++node) {
    if ((nodes[node / kMaskBits] >> (node % kMaskBits) & 1) != 0) return node;
  }
  return std::nullopt;
}

}  // namespace tensorcast
