#include "daemon/serving/possession.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "daemon/node/node_messages.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// These bounds limit what one question may cost. The global store asks for 16 ranges of 4 KiB.
constexpr int kMaxRanges = 64;
constexpr uint64_t kMaxBytes = uint64_t{64} << 10;
constexpr size_t kMaxNonceBytes = 64;
constexpr int kMaxDigesting = 2;  // each reads memory or a disk as fast as it can

absl::Status CheckQuestion(const v1::ProveRequest& request, uint64_t image_bytes) {
  uint64_t bytes = 0;
  for (const v1::ProveRequest::Range& range : request.ranges()) {
    bytes += range.bytes();
    if (range.offset() > image_bytes || range.bytes() > image_bytes - range.offset()) {
      return absl::InvalidArgumentError(absl::StrCat("prove possession: ", range.bytes(), " bytes at offset ",
                                                     range.offset(), " lie outside the image of ",
                                                     image_bytes, " bytes; ask for ranges of the image"));
    }
  }
  if (request.ranges_size() <= kMaxRanges && bytes <= kMaxBytes && request.nonce().size() <= kMaxNonceBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "prove possession: the request has ", request.ranges_size(), " ranges of ", bytes,
      " bytes together and a nonce of ", request.nonce().size(), " bytes; ask for at most ", kMaxRanges,
      " ranges of ", kMaxBytes, " bytes together, with a nonce of at most ", kMaxNonceBytes, " bytes"));
}

// The nonce, and room for the ranges behind it.
std::vector<std::byte> BeginWith(const std::string& nonce) {
  const auto bytes = std::as_bytes(std::span(nonce));
  return {bytes.begin(), bytes.end()};
}

// Where an image byte lies in the pool; nullopt in a hole.
std::optional<uint64_t> PoolOffset(const HostAllocation& memory, uint64_t offset) {
  for (const ImageExtent& part : memory.extents()) {
    if (offset >= part.image_offset && offset - part.image_offset < part.extent.bytes) {
      return part.extent.offset + (offset - part.image_offset);
    }
  }
  return std::nullopt;
}

std::string DigestOf(const std::vector<std::byte>& bytes) {
  const Blake3Digest digest = ComputeBlake3(bytes);
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

// The same question about the files of an import: the answer has to be that of the image.
absl::StatusOr<std::string> Possession::ProveFiles(const v1::ProveRequest& request) const {
  if (options_.open_origin == nullptr) {
    return absl::FailedPreconditionError(
        "prove possession: this node reads no files of imports; ask about a replica of this node");
  }
  TC_ASSIGN_OR_RETURN(const Files files, options_.open_origin(request.origin(), request.artifact_id()));
  TC_RETURN_IF_ERROR(CheckQuestion(request, files.image_bytes));
  std::vector<std::byte> bytes = BeginWith(request.nonce());
  std::vector<size_t> begins;
  for (const v1::ProveRequest::Range& range : request.ranges()) {
    begins.push_back(bytes.size());
    bytes.resize(bytes.size() + range.bytes());
  }
  // Side by side: of objects outside of this host each range takes a request's time.
  const RequestContext context = RequestContext::Background(options_.patience);
  std::vector<absl::Status> read(begins.size());
  ForEachInParallel(begins.size(), static_cast<size_t>(files.source->max_concurrency()), [&](size_t i) {
    const v1::ProveRequest::Range& range = request.ranges(static_cast<int>(i));
    const HostSpan destination(bytes.data() + begins[i], range.bytes());
    ChunkRequest fetch;
    fetch.range = {range.offset(), range.bytes()};
    fetch.destination = std::span(&destination, 1);
    read[i] = files.source->Fetch(context, fetch).status();
  });
  for (const absl::Status& status : read) TC_RETURN_IF_ERROR(status);
  return DigestOf(bytes);
}

// The digest begins with the asker's nonce, so the answer to an earlier question is of no use. The asker
// compares it, not this node.
absl::StatusOr<std::string> Possession::Prove(const v1::ProveRequest& request) const {
  if (request.has_origin()) return ProveFiles(request);
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ReplicaLease> lease,
                      options_.engine->LeaseToServe(request.replica_id()));
  // Only a whole, verified replica is a copy. One that fills or is partial may lack the very bytes that were
  // not asked for.
  if (lease->manifest()->id() != request.artifact_id() || lease->availability() != nullptr ||
      lease->partial()) {
    return absl::FailedPreconditionError(absl::StrCat("prove possession: replica ", request.replica_id(),
                                                      " is not a complete replica of ", request.artifact_id(),
                                                      "; ask about another replica"));
  }
  TC_RETURN_IF_ERROR(CheckQuestion(request, lease->manifest()->layout().image_bytes));
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<ServedReplica> image,
                      ServeReplica(std::move(lease), options_.devices, options_.staging, options_.patience));
  // The lease goes back whatever the outcome, so that a question never keeps a replica from its eviction.
  const absl::Cleanup release = [&] { image->Release(); };
  std::vector<std::byte> bytes = BeginWith(request.nonce());
  for (const v1::ProveRequest::Range& range : request.ranges()) {
    for (uint64_t done = 0; done < range.bytes();) {
      TC_ASSIGN_OR_RETURN(const transport::ServedPiece piece,
                          image->Read(range.offset() + done, range.bytes() - done));
      bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
      done += piece.bytes.size();
    }
  }
  return DigestOf(bytes);
}

// The text tells operators where the damaged bytes lie, so that they find broken hardware.
std::string Possession::DescribeMemory(const ReplicaLease& lease, const ByteRange& chunk) const {
  const Location& location = lease.location();
  std::optional<uint64_t> pool_offset;
  if (lease.memory().host != nullptr) pool_offset = PoolOffset(*lease.memory().host, chunk.offset);
  if (pool_offset.has_value()) {
    const std::vector<PoolSegment>& segments = options_.pool->segments();
    // The segment of an offset is the last one that begins at or before it.
    const auto behind = std::ranges::upper_bound(segments, *pool_offset, {}, &PoolSegment::offset);
    const auto segment = std::prev(behind);
    return absl::StrCat("host pool, segment ", segment - segments.begin(), ", ", chunk.bytes,
                        " bytes at offset ", *pool_offset - segment->offset, " of the segment");
  }
  if (location.kind == LocationKind::kDisk) return "packed file";
  for (const DeviceInfo& device : options_.devices->devices()) {
    if (device.ordinal != location.device) continue;
    return absl::StrCat(location.ToString(), " (", device.uuid, "), ", chunk.bytes, " bytes at offset ",
                        chunk.offset, " of the replica's memory");
  }
  return location.ToString();
}

absl::StatusOr<std::optional<v1::DamagedReplica>> Possession::FindDamage(
    const RequestContext& context, const std::string& replica_id) const {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<ReplicaLease> lease, options_.engine->LeaseToServe(replica_id));
  if (lease->availability() != nullptr || lease->partial()) {
    return absl::FailedPreconditionError(
        absl::StrCat("digest replica ", replica_id,
                     " again: the replica is not complete; ask again when the replica is ready"));
  }
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<ServedReplica> image,
                      ServeReplica(lease, options_.devices, options_.staging, options_.patience));
  const absl::Cleanup release = [&] { image->Release(); };
  const Manifest& manifest = *lease->manifest();
  // The comparison goes chunk by chunk, in the order of the image: the first difference is enough.
  for (uint32_t chunk = 0; chunk < manifest.layout().chunk_count(); ++chunk) {
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("digest replica ", replica_id, " again")));
    const ByteRange range = manifest.layout().chunk(chunk);
    const ChunkDigests& expected = manifest.digests()[chunk];
    DigestBuilder digest(/*with_blake3=*/expected.blake3.has_value());
    for (uint64_t done = 0; done < range.bytes;) {
      TC_ASSIGN_OR_RETURN(const transport::ServedPiece piece,
                          image->Read(range.offset + done, range.bytes - done));
      digest.Update(piece.bytes);
      done += piece.bytes.size();
    }
    if (digest.FinishChunk() == expected) continue;
    v1::DamagedReplica damaged;
    damaged.set_replica_id(replica_id);
    damaged.set_artifact_id(manifest.id());
    *damaged.mutable_location() = ToProto(lease->location(), options_.devices);
    damaged.set_offset(range.offset);
    damaged.set_bytes(range.bytes);
    damaged.set_memory(DescribeMemory(*lease, range));
    *damaged.mutable_found() = rpc::ToProto(ToWallTime(SteadyNow()));
    return damaged;
  }
  return std::nullopt;
}

// Asked after a receiver said that it got wrong bytes. The answer is this node's own finding: a receiver may
// be wrong, or lie.
absl::StatusOr<bool> Possession::DigestAgain(const RequestContext& context, const std::string& replica_id) {
  // Before the count is raised: the refusal below gives its own count back as well.
  const absl::Cleanup ended = [this] { digesting_.fetch_sub(1); };
  if (digesting_.fetch_add(1) >= kMaxDigesting) {
    return absl::ResourceExhaustedError(absl::StrCat("digest replica ", replica_id,
                                                     " again: this node is digesting ", kMaxDigesting,
                                                     " other replicas; try again later"));
  }
  TC_ASSIGN_OR_RETURN(const std::optional<v1::DamagedReplica> damaged, FindDamage(context, replica_id));
  if (damaged.has_value()) {
    // The replica is dropped and its readers are told before the global store hears that it does not match.
    if (on_damage_) on_damage_(*damaged);
    return false;
  }
  LOG(INFO) << "Replica " << replica_id << ", which a receiver says is corrupt, matches its manifest";
  return true;
}

}  // namespace tensorcast::daemon
