#include "daemon/session/handed_memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"
#include "core/memory/reserved_range.h"

namespace tensorcast::daemon {
namespace {

// Less than the alignment of tensors lies between two that follow each other.
constexpr std::array<std::byte, kTensorAlignment> kPadding{};

// What keeps the pieces' memory in place.
struct Kept {
  std::vector<ReservedRange> mappings;
  std::vector<std::unique_ptr<ReplicaLease>> leases;
};

absl::Status CheckParts(const std::vector<HandedMemory>& handed, uint64_t image_bytes) {
  std::vector<HandedPart> parts;
  for (const HandedMemory& memory : handed) {
    parts.insert(parts.end(), memory.parts.begin(), memory.parts.end());
  }
  // The parts are sorted by their place in the image, so that an overlap is always one of neighbours.
  std::ranges::sort(parts, {}, &HandedPart::image_offset);
  uint64_t end = 0;
  for (const HandedPart& part : parts) {
    const bool inside = part.image_offset <= image_bytes && part.bytes <= image_bytes - part.image_offset;
    if (!inside) {
      return absl::InvalidArgumentError(absl::StrCat(
          "put: the part of ", part.bytes, " bytes at offset ", part.image_offset,
          " ends outside the image of ", image_bytes, " bytes; hand over only parts of the image"));
    }
    if (part.image_offset < end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "put: the part of ", part.bytes, " bytes at offset ", part.image_offset,
          " of the image overlaps another part, which ends at offset ", end, "; hand each tensor over once"));
    }
    end = part.image_offset + part.bytes;
  }
  return absl::OkStatus();
}

// The memfd is sealed against writing and shrinking (the handle socket has checked that), so its bytes stay
// as they are while they are read.
void HoldMemfd(const HandedMemory& memory, HeldBytes& held, Kept& kept) {
  // Whole granules, since huge pages are mapped whole.
  absl::StatusOr<ReservedRange> mapping = ReservedRange::Reserve(
      (memory.bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes, "memory handed over for a put");
  absl::Status mapped = mapping.status();
  if (mapped.ok()) {
    mapped = mapping->Map(0, memory.memfd.get(), 0, memory.bytes, ReservedRange::Access::kRead);
  }
  if (!mapped.ok()) {
    LOG(WARNING) << "take over memory of a put: " << mapped << "; the tensors are streamed, which is slower";
    return;
  }
  const ConstHostSpan bytes(mapping->base(), memory.bytes);
  for (const HandedPart& part : memory.parts) {
    held.pieces.push_back({part.image_offset, bytes.subspan(part.offset, part.bytes)});
  }
  kept.mappings.push_back(*std::move(mapping));
}

// The lease keeps the replica's memory, and no client can write to a pool. The client names a replica that
// its tensors are views of; where this node has it no more, or elsewhere, the client streams those bytes.
void HoldReplica(const HandedMemory& memory, LeaseReplica lease_replica, HeldBytes& held, Kept& kept) {
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = lease_replica(memory.replica_id);
  // What a client says of replicas is a hint: bytes that cannot be held here are streamed, as all others are.
  if (!lease.ok() || (*lease)->location().kind != LocationKind::kCpu) return;
  const uint64_t image_bytes = (*lease)->manifest()->layout().image_bytes;
  for (const HandedPart& part : memory.parts) {
    if (part.offset > image_bytes || part.bytes > image_bytes - part.offset) continue;
    uint64_t at = part.image_offset;
    for (const ConstHostSpan& span : (*lease)->HostSpans(part.offset, part.bytes)) {
      held.pieces.push_back({at, span});
      at += span.size();
    }
  }
  kept.leases.push_back(*std::move(lease));
}

// `pieces` in order. A client would have to be asked for each of the gaps.
void AddPadding(std::vector<MappedPiece>& pieces, uint64_t image_bytes) {
  const size_t count = pieces.size();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t end = pieces[i].image_offset + pieces[i].bytes.size();
    const uint64_t next = i + 1 < count ? pieces[i + 1].image_offset : image_bytes;
    // Tensors begin at multiples of the alignment, so none lies in such a gap.
    if (next == end || next - end >= kTensorAlignment || next % kTensorAlignment != 0) continue;
    pieces.push_back({end, ConstHostSpan(kPadding).first(next - end)});
  }
  std::ranges::sort(pieces, {}, &MappedPiece::image_offset);
}

}  // namespace

// What is left out here is a gap between the pieces, and the ring source asks the client for each gap.
absl::StatusOr<HeldBytes> HoldHanded(std::vector<HandedMemory> handed, uint64_t image_bytes,
                                     std::string_view pool_id, LeaseReplica lease_replica) {
  for (HandedMemory& memory : handed) {
    // Parts without bytes would be neighbours of others at one offset, and look like overlaps.
    std::erase_if(memory.parts, [](const HandedPart& part) { return part.bytes == 0; });
  }
  TC_RETURN_IF_ERROR(CheckParts(handed, image_bytes));
  HeldBytes held;
  auto kept = std::make_shared<Kept>();
  // Memory without a memfd is a replica. One of another daemon's pool cannot be leased here, and is streamed.
  for (const HandedMemory& memory : handed) {
    if (memory.parts.empty()) continue;
    if (memory.memfd) {
      HoldMemfd(memory, held, *kept);
    } else if (memory.pool_id == pool_id) {
      HoldReplica(memory, lease_replica, held, *kept);
    }
  }
  std::ranges::sort(held.pieces, {}, &MappedPiece::image_offset);
  AddPadding(held.pieces, image_bytes);
  held.keep_alive = std::move(kept);
  return held;
}

}  // namespace tensorcast::daemon
