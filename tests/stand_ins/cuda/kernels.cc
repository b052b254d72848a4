#include "tests/stand_ins/cuda/kernels.h"

#include <cstdint>
#include <memory>

#include "core/device/digest_kernel.h"
#include "core/device/xxh3.h"

namespace tensorcast::stand_ins {
namespace {

KernelLaunch Digests(const DigestBatch& batch, int blocks) {
  KernelLaunch launch;
  for (int i = 0; i < blocks; ++i) {
    launch.accesses.push_back({batch.ranges[i].address, batch.ranges[i].bytes, /*write=*/false});
  }
  launch.accesses.push_back(
      {batch.digests, static_cast<uint64_t>(blocks) * xxh3::kDigestBytes, /*write=*/true});
  launch.run = [batch, blocks](const std::vector<std::byte*>& pieces) {
    const auto scratch = std::make_unique<xxh3::Scratch>();
    auto* const digests = reinterpret_cast<uint8_t*>(pieces.back());
    for (int i = 0; i < blocks; ++i) {
      xxh3::DigestRange(xxh3::SequentialTeam(), reinterpret_cast<const uint8_t*>(pieces[i]),
                        batch.ranges[i].bytes, *scratch, digests + i * xxh3::kDigestBytes);
    }
  };
  return launch;
}

}  // namespace

std::optional<KernelLaunch> LaunchOf(std::string_view kernel, void** parameters, int blocks, int threads) {
  if (kernel != kDigestKernelName || threads != xxh3::kLanes || blocks > kMaxDigestsAtOnce) {
    return std::nullopt;
  }
  return Digests(*static_cast<const DigestBatch*>(parameters[0]), blocks);
}

}  // namespace tensorcast::stand_ins
