#include "tests/stand_ins/cuda/kernels.h"

#include <cstdint>
#include <memory>

#include "core/device/change_kernel.h"
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

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Each block is an access to all its elements, whichever of them change.
KernelLaunch Changes(const ChangeBatch& batch, int blocks) {
  KernelLaunch launch;
  for (int i = 0; i < blocks; ++i) {
    const ElementBlock& block = batch.blocks[i];
    const uint64_t operand_bytes = uint64_t{block.count} * (block.steps ? 1 : block.width);
    launch.accesses.push_back(
        {AddressOf(block.begin), uint64_t{block.elements} * block.width, /*write=*/true});
    launch.accesses.push_back({AddressOf(block.places), block.count * sizeof(uint16_t), /*write=*/false});
    launch.accesses.push_back({AddressOf(block.operands), operand_bytes, /*write=*/false});
  }
  launch.run = [batch, blocks](const std::vector<std::byte*>& pieces) {
    for (int i = 0; i < blocks; ++i) {
      ElementBlock block = batch.blocks[i];
      block.begin = pieces[3 * i];
      block.places = reinterpret_cast<const uint16_t*>(pieces[3 * i + 1]);
      block.operands = pieces[3 * i + 2];
      for (uint32_t lane = 0; lane < kChangeLanes; ++lane) ChangeElements(block, lane, kChangeLanes);
    }
  };
  return launch;
}

}  // namespace

std::optional<KernelLaunch> LaunchOf(std::string_view kernel, void** parameters, int blocks, int threads) {
  if (kernel == kDigestKernelName && threads == xxh3::kLanes && blocks <= kMaxDigestsAtOnce) {
    return Digests(*static_cast<const DigestBatch*>(parameters[0]), blocks);
  }
  if (kernel == kChangeKernelName && threads == kChangeLanes && blocks <= kMaxChangesAtOnce) {
    return Changes(*static_cast<const ChangeBatch*>(parameters[0]), blocks);
  }
  return std::nullopt;
}

}  // namespace tensorcast::stand_ins
