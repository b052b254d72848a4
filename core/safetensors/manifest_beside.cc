#include "core/safetensors/manifest_beside.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/source/bounce_buffers.h"
#include "core/source/object_source.h"

namespace tensorcast {
namespace {

absl::Status Unfit(std::string_view uri, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("import with the manifest ", uri, ": ", why,
                   "; remove it, or write it again with `tensorcast manifest`"));
}

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;
constexpr uint64_t kStepBytes = uint64_t{4} << 20;  // a chunk may be larger than memory is to spare

absl::StatusOr<ChunkDigests> DigestChunk(const RequestContext& context, ChunkSource& source, uint32_t chunk,
                                         const ByteRange& range, HostSpan buffer) {
  DigestBuilder digest(/*with_blake3=*/true);
  for (uint64_t done = 0; done < range.bytes;) {
    const HostSpan step = buffer.first(std::min<uint64_t>(buffer.size(), range.bytes - done));
    ChunkRequest request;
    request.chunk = chunk;
    request.range = {range.offset + done, step.size()};
    request.destination = {&step, 1};
    TC_RETURN_IF_ERROR(source.Fetch(context, request).status());
    digest.Update(step);
    done += step.size();
  }
  return digest.FinishChunk();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> MakeManifest(const RequestContext& context,
                                                             const SafetensorsModel& model) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(model.objects, model.extents, model.layout.image_bytes));
  std::vector<ChunkDigests> digests(model.layout.chunk_count());
  std::atomic<uint32_t> next = 0;
  absl::Mutex mutex;
  absl::Status failed;
  const auto work = [&] {
    const AlignedBuffer buffer = AllocateAligned(kStepBytes);
    for (uint32_t chunk; (chunk = next.fetch_add(1)) < digests.size();) {
      absl::StatusOr<ChunkDigests> digest =
          DigestChunk(context, *source, chunk, model.layout.chunk(chunk), HostSpan(buffer.get(), kStepBytes));
      if (digest.ok()) {
        digests[chunk] = *std::move(digest);
        continue;
      }
      next = model.layout.chunk_count();  // ends the other threads
      absl::MutexLock lock(&mutex);
      failed.Update(digest.status());
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int i = 1; i < source->max_concurrency(); ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads can be started: it takes longer.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  TC_RETURN_IF_ERROR(failed);
  for (const std::shared_ptr<ObjectReader>& object : model.objects) {
    TC_RETURN_IF_ERROR(object->CheckUnchanged(context));
  }
  return Manifest::Create(model.layout, std::move(digests), model.metadata);
}

std::string ManifestUriOf(std::string_view uri) {
  if (absl::ConsumeSuffix(&uri, ".safetensors")) return absl::StrCat(uri, kManifestExtension);
  return absl::StrCat(absl::StripSuffix(uri, "/"), "/model", kManifestExtension);
}

absl::StatusOr<std::shared_ptr<const Manifest>> FindManifestBeside(const RequestContext& context,
                                                                   const ObjectStore& store,
                                                                   std::string_view uri,
                                                                   const SafetensorsModel& model) {
  const std::string beside = ManifestUriOf(uri);
  const absl::StatusOr<FoundObject> found = store.Find(context, beside);
  if (!found.ok()) {
    // A store says "denied" of what it does not have to a client that may not list.
    const bool none = absl::IsNotFound(found.status()) || absl::IsPermissionDenied(found.status()) ||
                      absl::IsInvalidArgument(found.status());
    if (none) return nullptr;
    return found.status();
  }
  if (found->object == nullptr) return nullptr;
  const uint64_t bytes = found->object->identity().bytes;
  if (bytes > kMaxManifestBytes) return Unfit(beside, "it is too large for a manifest");
  TC_ASSIGN_OR_RETURN(const std::string text, ReadBytes(context, *found->object, 0, bytes));
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(text);
  if (!manifest.ok()) return Unfit(beside, manifest.status().message());
  if (!SameImage((*manifest)->layout(), model.layout) || (*manifest)->metadata() != model.metadata) {
    return Unfit(beside, "it is of another model");
  }
  return manifest;
}

absl::Status CheckManifestBeside(std::string_view uri, const Manifest& beside, const Manifest& made) {
  if (beside.id() == made.id()) return absl::OkStatus();
  const std::vector<ChunkDigests>& told = beside.digests();
  size_t chunk = 0;
  while (chunk < told.size() && chunk < made.digests().size() && told[chunk] == made.digests()[chunk]) {
    ++chunk;
  }
  return Unfit(ManifestUriOf(uri), absl::StrCat("chunk ", chunk, " of the model is not what it says"));
}

}  // namespace tensorcast
