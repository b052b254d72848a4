#include "daemon/service/archiver.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "core/disk/packed_format.h"
#include "core/safetensors/manifest_beside.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

std::string_view WithoutSlash(std::string_view place) { return absl::StripSuffix(place, "/"); }

// The name of the manifest that goes with a packed file.
std::string ManifestOf(std::string_view packed_uri) {
  return absl::StrCat(absl::StripSuffix(packed_uri, kPackedExtension), kManifestExtension);
}

// The artifact that an object is a pack or a manifest of. "" for any other name, which is left alone.
std::string ArtifactOf(std::string_view uri) {
  std::string_view name = uri.substr(uri.rfind('/') + 1);
  std::string packed(name);
  if (absl::ConsumeSuffix(&name, kManifestExtension)) packed = absl::StrCat(name, kPackedExtension);
  return ArtifactIdOfFileName(packed);
}

// `bytes` must stay until the object is written.
objects::FillBytes FillFrom(std::string_view bytes) {
  return [bytes](const RequestContext&, uint64_t offset, HostSpan destination) {
    std::memcpy(destination.data(), bytes.data() + offset, destination.size());
    return absl::OkStatus();
  };
}

// A packed file as bytes from any offset on: its front (header, manifest, gap), the image, the padding.
class PackedImage {
 public:
  explicit PackedImage(const ReplicaLease& lease) : lease_(lease) {
    const std::string& manifest = lease.manifest()->bytes();
    header_.manifest_bytes = manifest.size();
    header_.image_offset = AlignUp(header_.manifest_offset + manifest.size());
    header_.image_bytes = lease.manifest()->layout().image_bytes;
    front_ = EncodePackedHeader(header_);
    front_ += manifest;
    front_.resize(header_.image_offset);
  }

  uint64_t bytes() const { return header_.file_bytes(); }

  void Fill(uint64_t offset, HostSpan destination) const {
    while (!destination.empty()) {
      const size_t done = FillSome(offset, destination);
      offset += done;
      destination = destination.subspan(done);
    }
  }

 private:
  // The bytes come from one of three parts: the front, the image, and the zeros up to the file's end.
  size_t FillSome(uint64_t offset, HostSpan destination) const {
    if (offset < front_.size()) {
      const size_t size = std::min<size_t>(destination.size(), front_.size() - offset);
      std::memcpy(destination.data(), front_.data() + offset, size);
      return size;
    }
    const uint64_t image_offset = offset - front_.size();
    if (image_offset >= header_.image_bytes) {
      std::memset(destination.data(), 0, destination.size());
      return destination.size();
    }
    const uint64_t size = std::min<uint64_t>(destination.size(), header_.image_bytes - image_offset);
    std::byte* to = destination.data();
    for (const ConstHostSpan& span : lease_.HostSpans(image_offset, size)) {
      std::memcpy(to, span.data(), span.size());
      to += span.size();
    }
    return size;
  }

  const ReplicaLease& lease_;
  PackedHeader header_;
  std::string front_;
};

}  // namespace

// Names what is being written for as long as it lives, so that no collection takes it for a crash's.
class Archiver::InFlight {
 public:
  InFlight(const Archiver& archiver, std::string uri) : archiver_(archiver), uri_(std::move(uri)) {
    absl::MutexLock lock(&archiver_.mutex_);
    archiver_.in_flight_.insert(uri_);
  }
  ~InFlight() {
    absl::MutexLock lock(&archiver_.mutex_);
    archiver_.in_flight_.erase(archiver_.in_flight_.find(uri_));
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  const Archiver& archiver_;
  const std::string uri_;
};

absl::StatusOr<std::string> Archiver::FolderOf(std::string_view place) const {
  const std::string cluster_id = options_.cluster_id();
  if (!cluster_id.empty()) return absl::StrCat(WithoutSlash(place), "/", cluster_id, "/");
  return absl::UnavailableError(absl::StrCat(
      "use archive ", place,
      ": the global store has not sent the cluster's id yet; try again when the global store answers"));
}

absl::Status Archiver::CheckPlace(std::string_view place) const {
  // A place may be written with a '/' at its end or without.
  const bool listed = std::ranges::any_of(
      options_.places, [&](const std::string& one) { return WithoutSlash(one) == WithoutSlash(place); });
  if (listed) return FolderOf(place).status();
  return absl::PermissionDeniedError(absl::StrCat(
      "archive to ", place, ": this place is not among the daemon's archives; add it to daemon.archives"));
}

absl::StatusOr<Origin> Archiver::Archive(const RequestContext& context, const ReplicaLease& lease,
                                         const std::string& place) const {
  TC_RETURN_IF_ERROR(CheckPlace(place));
  if (lease.location().kind != LocationKind::kCpu) {
    // The bytes go through host memory: by a replica there, which others may use afterwards.
    IngestRequest request;
    request.manifest = lease.manifest();
    request.wait_for_space = true;
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<PendingReplica> pending,
                        options_.engine->Ingest(context, std::move(request)));
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<ReplicaLease> in_host_memory, pending->Wait(context));
    return Archive(context, *in_host_memory, place);
  }
  TC_ASSIGN_OR_RETURN(const std::string folder, FolderOf(place));
  const std::string packed_uri = absl::StrCat(folder, PackedFileName(lease.manifest()->id()));
  const std::string manifest_uri = ManifestOf(packed_uri);
  const PackedImage image(lease);
  const std::string& manifest = lease.manifest()->bytes();
  Origin origin;
  origin.node_id = options_.node_id;

  // The manifest is written last, so with it all is there.
  const auto manifest_there = options_.writer->Describe(context, manifest_uri);
  if (manifest_there.ok() && manifest_there->bytes == manifest.size()) {
    auto packed_there = options_.writer->Describe(context, packed_uri);
    if (packed_there.ok() && packed_there->bytes == image.bytes()) {
      origin.objects.push_back(*std::move(packed_there));
      return origin;
    }
  }
  // The URI counts as in flight until both objects are there, so that Collect of this daemon does not take
  // the first one for a leftover.
  const InFlight in_flight(*this, packed_uri);
  TC_ASSIGN_OR_RETURN(ObjectIdentity packed,
                      options_.writer->Write(context, packed_uri, image.bytes(),
                                             [&](const RequestContext&, uint64_t offset, HostSpan to) {
                                               image.Fill(offset, to);
                                               return absl::OkStatus();
                                             }));
  TC_RETURN_IF_ERROR(
      options_.writer->Write(context, manifest_uri, manifest.size(), FillFrom(manifest)).status());
  LOG(INFO) << "artifact " << lease.manifest()->id() << " is archived at " << packed_uri;
  origin.objects.push_back(std::move(packed));
  return origin;
}

absl::Status Archiver::CheckBeside(std::string_view uri) const {
  if (options_.writer != nullptr && options_.writable.Check(uri).ok()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("write ", uri,
                                                  ": the object is not below one of the daemon's archives; "
                                                  "add the folder of the object to daemon.archives"));
}

absl::Status Archiver::WriteBeside(const RequestContext& context, const Manifest& manifest,
                                   const std::string& uri) const {
  TC_RETURN_IF_ERROR(CheckBeside(uri));
  return options_.writer->Write(context, uri, manifest.bytes().size(), FillFrom(manifest.bytes())).status();
}

absl::Status Archiver::CollectIn(const RequestContext& context, const std::string& folder, absl::Time before,
                                 bool dry_run, v1::CollectArchivesResponse& response) const {
  const auto is_in_flight = [this](const std::string& uri) {
    absl::MutexLock lock(&mutex_);
    return in_flight_.contains(uri);
  };
  // What a thread of this process writes is left alone, however old it is. Any other upload counts as
  // interrupted from the min age on: whether another node still writes it cannot be seen.
  TC_ASSIGN_OR_RETURN(const std::vector<objects::S3Upload> uploads,
                      options_.writer->ListUploads(context, folder));
  for (const objects::S3Upload& upload : uploads) {
    if (ArtifactOf(upload.uri).empty() || upload.begun > before || is_in_flight(upload.uri)) continue;
    if (!dry_run) TC_RETURN_IF_ERROR(options_.writer->Abort(context, upload));
    response.add_ended_uploads(upload.uri);
  }
  TC_ASSIGN_OR_RETURN(std::vector<objects::StoredObject> stored, options_.writer->List(context, folder));
  // Manifests first: where one is, the packed file is whole.
  std::stable_partition(stored.begin(), stored.end(), [](const objects::StoredObject& object) {
    return absl::EndsWith(object.uri, kManifestExtension);
  });
  for (const objects::StoredObject& object : stored) {
    const std::string artifact_id = ArtifactOf(object.uri);
    const std::string packed_uri = absl::StrCat(folder, PackedFileName(artifact_id));
    // A young object may be of an artifact that another node archives now, and publishes afterwards.
    if (artifact_id.empty() || object.written > before || is_in_flight(packed_uri)) continue;
    const absl::Status known = options_.global_store->FindCopies(context, artifact_id).status();
    if (known.ok()) continue;
    // Only a store that answers that there is no such artifact lets its objects go.
    if (!absl::IsNotFound(known)) return known;
    if (!dry_run) TC_RETURN_IF_ERROR(options_.writer->Remove(context, object.uri));
    response.add_removed_objects(object.uri);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CollectArchivesResponse> Archiver::Collect(
    const RequestContext& context, const v1::CollectArchivesRequest& request) const {
  v1::CollectArchivesResponse response;
  const absl::Time before = absl::Now() - rpc::FromProto(request.min_age());
  for (const std::string& place : options_.places) {
    TC_ASSIGN_OR_RETURN(const std::string folder, FolderOf(place));
    TC_RETURN_IF_ERROR(CollectIn(context, folder, before, request.dry_run(), response));
  }
  return response;
}

}  // namespace tensorcast::daemon
