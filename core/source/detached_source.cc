#include "core/source/detached_source.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/aside.h"
#include "base/status.h"

namespace tensorcast {
namespace {

struct Fetched {
  std::unique_ptr<std::byte[]> bytes;
  std::optional<ChunkDigests> digests;
};

absl::StatusOr<Fetched> FetchInside(ChunkSource& inside, const RequestContext& context,
                                    ChunkRequest request) {
  Fetched fetched{.bytes = std::make_unique_for_overwrite<std::byte[]>(request.range.bytes), .digests = {}};
  const HostSpan buffer(fetched.bytes.get(), request.range.bytes);
  // Not the caller's memory: the caller may be gone when this read ends.
  request.destination = {&buffer, 1};
  TC_ASSIGN_OR_RETURN(fetched.digests, inside.Fetch(context, request));
  return fetched;
}

}  // namespace

// The destructor may close files, which may hang as reading them does.
DetachedSource::~DetachedSource() {
  RunDetached([inside = std::move(inside_)]() mutable { inside.reset(); });
}

// The lambda owns all that it uses (the inner source, copies of the context and the request), since it may
// run on when this fetch has returned.
absl::StatusOr<std::optional<ChunkDigests>> DetachedSource::Fetch(const RequestContext& context,
                                                                  const ChunkRequest& request) {
  TC_RETURN_IF_ERROR(CheckDestination(info(), request));
  TC_ASSIGN_OR_RETURN(const Fetched fetched, RunAside<Fetched>(
                                                 context, DescribeFetch(info(), request),
                                                 [inside = inside_, context, request] {
                                                   return FetchInside(*inside, context, request);
                                                 },
                                                 [this](bool slow) { NoteSlow(slow); }));
  // One copy more than without this class: the price for a destination that no lost thread writes to.
  const std::byte* from = fetched.bytes.get();
  for (const HostSpan& part : request.destination) {
    std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  return fetched.digests;
}

// The observer is called without the lock, by one thread at a time: two calls could else come in the wrong
// order, and a fetch that hangs would be forgotten. The thread that tells goes on until what it told is true,
// so others leave their change to it.
void DetachedSource::NoteSlow(bool slow) {
  absl::MutexLock lock(&mutex_);
  slow_ += slow ? 1 : -1;
  if (is_telling_ || !observer_) return;
  is_telling_ = true;
  while (told_slow_ != (slow_ > 0)) {
    told_slow_ = slow_ > 0;
    const std::string what =
        told_slow_ ? absl::StrCat("the file system of ", info().name, ", which does not answer") : "";
    mutex_.Unlock();
    observer_(what);
    mutex_.Lock();
  }
  is_telling_ = false;
}

}  // namespace tensorcast
