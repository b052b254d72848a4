#include "core/disk/import_verifier.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/source/bounce_buffers.h"
#include "core/source/object_source.h"

namespace tensorcast {
namespace {

constexpr uint64_t kStepBytes = uint64_t{4} << 20;  // a chunk may be larger than memory is to spare

bool Overlap(const ObjectExtent& extent, const ByteRange& range) {
  return extent.image_offset < range.offset + range.bytes &&
         range.offset < extent.image_offset + extent.bytes;
}

absl::StatusOr<Digest> DigestOf(const RequestContext& context, ChunkSource& source, uint32_t chunk,
                                const ByteRange& range, HostSpan buffer) {
  DigestBuilder digest;
  for (uint64_t done = 0; done < range.bytes;) {
    const HostSpan step = buffer.first(std::min<uint64_t>(buffer.size(), range.bytes - done));
    TC_RETURN_IF_ERROR(
        source.Fetch(context, {chunk, {range.offset + done, step.size()}, {&step, 1}}).status());
    digest.Update(step);
    done += step.size();
  }
  return digest.Finish();
}

// Hands out the chunks to the threads that compare them, until one of them fails or finds a difference.
class Chunks {
 public:
  explicit Chunks(uint32_t count) : count_(count) {}

  bool Next(uint32_t* chunk) { return !ended_ && (*chunk = next_.fetch_add(1)) < count_; }
  void Fail(absl::Status status) {
    ended_ = true;
    absl::MutexLock lock(&mutex_);
    status_.Update(std::move(status));  // the first one stays
  }
  void Differ(uint32_t chunk) {
    ended_ = true;
    absl::MutexLock lock(&mutex_);
    different_ = std::min(different_.value_or(chunk), chunk);
  }
  absl::StatusOr<std::optional<uint32_t>> Result() const {
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(status_);
    return different_;
  }

 private:
  const uint32_t count_;
  std::atomic<uint32_t> next_ = 0;
  std::atomic<bool> ended_ = false;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint32_t> different_ ABSL_GUARDED_BY(mutex_);
};

// The objects that a part of the image comes from, for a message.
std::string NamesOf(const ByteRange& range, const std::vector<ObjectExtent>& extents,
                    const ObjectReaders& objects) {
  std::set<uint32_t> used;
  for (const ObjectExtent& extent : extents) {
    if (Overlap(extent, range)) used.insert(extent.object);
  }
  if (used.empty()) return "no file";
  const std::string& first = objects[*used.begin()]->identity().uri;
  return used.size() == 1 ? first : absl::StrCat(first, " and ", used.size() - 1, " more");
}

}  // namespace

absl::StatusOr<std::optional<uint32_t>> FindDifferentChunk(const RequestContext& context, ChunkSource& source,
                                                           const Manifest& manifest) {
  const ImageLayout& layout = manifest.layout();
  Chunks chunks(layout.chunk_count());
  const auto work = [&] {
    const AlignedBuffer buffer = AllocateAligned(kStepBytes);
    for (uint32_t chunk = 0; chunks.Next(&chunk);) {
      const absl::StatusOr<Digest> digest =
          DigestOf(context, source, chunk, layout.chunk(chunk), HostSpan(buffer.get(), kStepBytes));
      if (!digest.ok()) {
        chunks.Fail(digest.status());
      } else if (*digest != manifest.digests()[chunk].xxh3) {
        chunks.Differ(chunk);
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int i = 1; i < source.max_concurrency(); ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads can be started: the comparison takes longer.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  return chunks.Result();
}

absl::Status CompareAgain(const RequestContext& context, const ObjectReaders& objects,
                          const std::vector<ObjectExtent>& extents, const Manifest& manifest) {
  const ImageLayout& layout = manifest.layout();
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(objects, extents, layout.image_bytes));
  TC_ASSIGN_OR_RETURN(const std::optional<uint32_t> different,
                      FindDifferentChunk(context, *source, manifest));
  if (!different.has_value()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "compare ", NamesOf(layout.chunk(*different), extents, objects), ": chunk ", *different,
      " was not the same when it was read a second time; import it when nothing writes the file any more"));
}

}  // namespace tensorcast
