// What Changes does to memory of the caller: writes it, and compares it with the digests.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/changes_state.h"
#include "core/artifact/digest.h"
#include "tensorcast/changes.h"

namespace tensorcast::client {
namespace {

// Elements that lie scattered are bound by the latency of memory, so more threads gain than for a copy.
constexpr size_t kMaxThreads = 8;
// The memory of so many elements is asked for before it is used: the changed ones lie too far apart for the
// processor to guess the next.
constexpr size_t kAhead = 32;

// Runs work(i) for all i below `count`, begun in their order, on up to kMaxThreads threads. The first error
// ends it. `make` makes the work of one thread.
template <class Make>
absl::Status OnThreads(size_t count, const Make& make) {
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  absl::Status first_error;  // guarded by `mutex`
  const auto run = [&] {
    auto work = make();
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      absl::Status status = work(i);
      if (status.ok()) continue;
      next = count;
      absl::MutexLock lock(&mutex);
      first_error.Update(status);
    }
  };
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(threads, count); ++i) {
    try {
      others.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // this thread does it
    }
  }
  run();
  for (std::thread& other : others) other.join();
  return first_error;
}

// `from` and `to` are where offset 0 is, or would be.
template <size_t kWidth>
// The width is a template argument, so that each copy is one instruction and not a call.
void Scatter(std::span<const uint32_t> offsets, uint64_t from_begin, uint64_t to_begin, const std::byte* from,
             std::byte* to) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (i + kAhead < offsets.size()) {
      __builtin_prefetch(from + (offsets[i + kAhead] + from_begin));
      __builtin_prefetch(to + (offsets[i + kAhead] + to_begin), 1);
    }
    std::memcpy(to + (offsets[i] + to_begin), from + (offsets[i] + from_begin), kWidth);
  }
}

}  // namespace

void Changes::Target::ForOverlaps(ByteRange range, absl::FunctionRef<void(size_t, ByteRange)> visit) const {
  const auto end_of = [](const ByteRange& one) { return one.offset + one.bytes; };
  auto place =
      std::ranges::partition_point(places, [&](const ByteRange& one) { return end_of(one) <= range.offset; });
  for (; place != places.end() && place->offset < end_of(range); ++place) {
    const uint64_t begin = std::max(place->offset, range.offset);
    const uint64_t end = std::min(end_of(*place), end_of(range));
    if (begin < end) visit(static_cast<size_t>(place - places.begin()), {begin, end - begin});
  }
}

absl::Status Changes::Target::Check(std::span<const std::span<std::byte>> memory) const {
  if (memory.size() != places.size()) {
    return absl::InvalidArgumentError(absl::StrCat("match the caller's memory with the tensors of ",
                                                   artifact_id, ": the get chose ", places.size(),
                                                   " tensors, but the caller gave memory for ", memory.size(),
                                                   " tensors; give memory for each chosen tensor"));
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i].empty() || memory[i].size() == places[i].bytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "match the caller's memory with the tensors of ", artifact_id, ": tensor \"",
        manifest->layout().tensors[tensors[i]].name, "\" has ", places[i].bytes,
        " bytes, but the caller gave memory of ", memory[i].size(), " bytes; give memory of the same size"));
  }
  return absl::OkStatus();
}

// Each part is written by one thread, and parts do not overlap, so no byte has two writers. A part with known
// changes is scattered element by element, any other is copied whole. Values come from the target's image
// only, so to write a part twice is harmless.
absl::StatusOr<WrittenChanges> Changes::WriteTo(const RequestContext& context,
                                                std::span<const std::span<std::byte>> tensors) const {
  const State& state = *state_;
  const Target& target = state.target;
  TC_RETURN_IF_ERROR(target.Check(tensors));
  std::atomic<uint64_t> elements = 0;
  std::atomic<uint64_t> whole_bytes = 0;
  const auto copy = [&](ByteRange range) {
    target.ForOverlaps(range, [&](size_t i, ByteRange shared) {
      if (tensors[i].empty()) return;
      std::memcpy(tensors[i].data() + (shared.offset - target.places[i].offset),
                  target.image.data() + shared.offset, shared.bytes);
      whole_bytes += shared.bytes;
    });
  };
  // Of a part that begins at `begin` in the image.
  const auto scatter = [&](uint64_t begin, const ChangedElements& changed) {
    const ByteRange spanned = {begin + changed.offsets.front(),
                               changed.offsets.back() - changed.offsets.front() + uint64_t{changed.width}};
    target.ForOverlaps(spanned, [&](size_t i, ByteRange shared) {
      if (tensors[i].empty()) return;
      // Padding belongs to no tensor, whatever a difference says.
      const auto first = std::ranges::lower_bound(changed.offsets, shared.offset - begin);
      const auto last = std::lower_bound(first, changed.offsets.end(), shared.offset + shared.bytes - begin);
      const std::span<const uint32_t> mine(first, last);
      const uint64_t to_begin = begin - target.places[i].offset;  // may wrap around; the sums do not
      const auto write = [&]<size_t kWidth>() {
        Scatter<kWidth>(mine, begin, to_begin, target.image.data(), tensors[i].data());
      };
      switch (changed.width) {
        case 1:
          write.template operator()<1>();
          break;
        case 2:
          write.template operator()<2>();
          break;
        case 4:
          write.template operator()<4>();
          break;
        default:
          write.template operator()<8>();
      }
      elements += mine.size();
    });
  };
  const auto write_parts = [&] {
    return [&, reader = ChangesReader()](size_t i) mutable {
      const ChangedPart& part = state.parts[i];
      TC_RETURN_IF_ERROR(context.Check("write changes"));
      const bool known = state.Visit(
          part, reader, [&](const ChangedElements& changed) { scatter(part.range.offset, changed); });
      if (!known) copy(part.range);
      return absl::OkStatus();
    };
  };
  TC_RETURN_IF_ERROR(OnThreads(state.parts.size(), write_parts));
  return WrittenChanges{.elements = elements, .whole_bytes = whole_bytes};
}

// A chunk's digest is computed over the caller's tensors, filled up from the image where the caller gave no
// memory and between tensors. Where it differs although the caller's bytes are those of the image, the image
// itself is damaged.
absl::StatusOr<std::vector<size_t>> Changes::Differing(const RequestContext& context, const Replica& replica,
                                                       std::span<const std::span<std::byte>> tensors) {
  TC_ASSIGN_OR_RETURN(const Target target, TargetOf(replica));
  TC_RETURN_IF_ERROR(target.Check(tensors));
  std::vector<std::atomic<bool>> differs(tensors.size());
  const auto check = [&](size_t i) -> absl::Status {
    TC_RETURN_IF_ERROR(context.Check("verify tensors"));
    const uint32_t chunk = target.chunks[i];
    const ByteRange range = target.manifest->layout().chunk(chunk);
    // The caller's tensors, with what lies between them in the image.
    DigestBuilder digest;
    uint64_t done = range.offset;
    target.ForOverlaps(range, [&](size_t tensor, ByteRange shared) {
      if (tensors[tensor].empty()) return;
      digest.Update(target.image.subspan(done, shared.offset - done));
      digest.Update(tensors[tensor].subspan(shared.offset - target.places[tensor].offset, shared.bytes));
      done = shared.offset + shared.bytes;
    });
    digest.Update(target.image.subspan(done, range.offset + range.bytes - done));
    if (digest.Finish() == target.manifest->digests()[chunk].xxh3) return absl::OkStatus();
    // A digest is one of a chunk: the bytes tell which of its tensors it is.
    bool found = false;
    target.ForOverlaps(range, [&](size_t tensor, ByteRange shared) {
      if (tensors[tensor].empty()) return;
      const std::byte* const bytes = tensors[tensor].data() + (shared.offset - target.places[tensor].offset);
      if (std::memcmp(bytes, target.image.data() + shared.offset, shared.bytes) == 0) return;
      differs[tensor] = true;
      found = true;
    });
    if (found) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("verify replica ", replica.replica_id(), " of ",
                                            target.artifact_id, ": chunk ", chunk,
                                            " does not match its digest; evict the replica, get the artifact "
                                            "again, and check the memory of this node"));
  };
  TC_RETURN_IF_ERROR(OnThreads(target.chunks.size(), [&] { return check; }));
  std::vector<size_t> differing;
  for (size_t i = 0; i < differs.size(); ++i) {
    if (differs[i]) differing.push_back(i);
  }
  return differing;
}

}  // namespace tensorcast::client
