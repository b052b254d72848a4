// Client::Put and Client::Import: a new artifact at the daemon, from tensors of this process or from files.

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/aside.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "client/base_order.h"
#include "client/handed_tensors.h"
#include "client/put_image.h"
#include "client/session.h"
#include "core/artifact/manifest.h"
#include "core/artifact/object_uri.h"
#include "core/disk/file_io.h"
#include "core/disk/import_roots.h"
#include "core/handles/handle_client.h"
#include "core/handles/ring_filler.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/manifest_beside.h"
#include "core/safetensors/safetensors.h"
#include "core/tensor/tensor.h"
#include "objects/client_credentials.h"
#include "objects/credentials/profile.h"
#include "otel/api/span.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

// More threads than this gain nothing on one memory bus.
constexpr int kMaxFillThreads = 4;
constexpr absl::Duration kOfferTimeout = absl::Seconds(10);  // the daemon answers at once or not at all
constexpr size_t kTensorsPerMessage = 1000;

// The fields that both ways of making an artifact have.
template <class Request>
absl::Status SetOptions(const PutOptions& options, Request& request) {
  TC_ASSIGN_OR_RETURN(const Location location, Location::Parse(options.location));
  *request.mutable_location() = rpc::ToProto(location);
  request.set_durable(options.durable);
  request.set_archive(options.archive);
  request.set_wait_for_space(options.wait_for_space);
  request.set_pin(options.pin);
  request.mutable_difference()->set_base(options.base);
  request.mutable_difference()->set_required(options.require_difference);
  if (!options.key.has_value()) {
    // Without a key nothing is bound, and there are no versions to keep.
    if (!options.keep.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError("put: keep needs a key, and no key was given; name a key");
  }
  if (options.keep.has_value()) request.mutable_binding()->set_keep(*options.keep);
  request.mutable_binding()->set_key(*options.key);
  if (options.expected_revision.has_value()) {
    request.mutable_binding()->set_expected_revision(*options.expected_revision);
  }
  return absl::OkStatus();
}

// Tensor descriptions by the thousand, so that no message nears gRPC's limit.
std::vector<v1::PutArtifactRequest> DescribeTensors(const ImageLayout& layout) {
  std::vector<v1::PutArtifactRequest> requests(1);
  for (const Tensor& tensor : layout.tensors) {
    if (requests.back().tensors_size() == kTensorsPerMessage) requests.emplace_back();
    auto* description = requests.back().add_tensors();
    description->set_name(tensor.name);
    description->set_dtype(std::string(DTypeName(tensor.dtype)));
    description->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
  return requests;
}

using OnResponse = absl::FunctionRef<absl::Status(v1::PutArtifactResponse&&)>;

// Follows the events of a put or an import to its result. `once` is one attempt; while the daemon is not
// available the whole is tried again, since a restarted daemon knows nothing of an earlier attempt.
absl::StatusOr<v1::PutArtifactResult> WithRetries(otel::Span& span, const RequestContext& operation,
                                                  const PutOptions& options, const std::string& what,
                                                  absl::FunctionRef<absl::Status(OnResponse)> once) {
  std::optional<v1::PutArtifactResult> result;
  const auto on_response = [&](v1::PutArtifactResponse&& response) {
    if (response.has_progress() && options.on_progress) {
      options.on_progress(rpc::FromProto(response.progress()));
    }
    if (response.has_result()) result = std::move(*response.mutable_result());
    return absl::OkStatus();
  };
  const absl::Status status =
      rpc::RetryUnavailable(operation, {.what = kAsking}, [&](const rpc::Attempt& attempt) {
        rpc::NoteRetry(span, attempt);
        return once(on_response);
      });
  if (!status.ok()) return Annotate(status, what);
  if (result.has_value()) return *std::move(result);
  return absl::InternalError(absl::StrCat(what, ": the daemon ended the call without a result; try again"));
}

absl::StatusOr<PutResult> ResultOf(const v1::PutArtifactResult& message) {
  PutResult result{.artifact_id = message.artifact_id(),
                   .replica_id = message.replica().replica_id(),
                   .existed = message.existed(),
                   .key_revision = message.key_revision(),
                   .files_id = message.files_id()};
  if (message.has_transfer()) {
    TC_ASSIGN_OR_RETURN(result.transfer, rpc::FromProto(message.transfer()));
  }
  if (message.has_difference()) {
    const v1::Difference& made = message.difference();
    result.difference = {made.artifact_id(), made.base_id(), made.target_id(), made.image_bytes()};
  }
  result.no_difference = message.no_difference();
  return result;
}

int FillThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxFillThreads);
}

// Page-locked while it lives, as far as the host allows: copies from GPUs are several times as fast then.
class PageLocked {
 public:
  PageLocked(DeviceRuntime* devices, HostSpan memory) : devices_(devices), base_(memory.data()) {
    if (devices == nullptr) return;
    status_ = devices->RegisterHost(base_, memory.size(), HostAccess::kReadWrite);
    LOG_IF(WARNING, !status_.ok()) << "copying from GPUs to memory that is not page-locked: " << status_;
  }
  ~PageLocked() {
    if (devices_ != nullptr && status_.ok()) devices_->UnregisterHost(base_).IgnoreError();
  }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;

 private:
  DeviceRuntime* const devices_;  // null: it is not
  std::byte* const base_;
  absl::Status status_;
};

// A ring is good for one call, so each attempt has its own, and begins the image again.
absl::Status PutOnce(Session& session, const RequestContext& context, const PutImage& image,
                     std::span<const HandedMemory> handed, std::vector<v1::PutArtifactRequest>& requests,
                     OnResponse on_response) {
  DaemonLink& link = *session.link;
  TC_ASSIGN_OR_RETURN(const std::string handle_socket, link.HandleSocket(context));
  absl::StatusOr<std::unique_ptr<RingFiller>> opened = RingFiller::Open(
      handle_socket, image.layout().image_bytes, context.deadline, context.cancellation, handed);
  TC_RETURN_IF_ERROR(context.Check("wait for a ring"));  // rather than that the connection was shut down
  TC_RETURN_IF_ERROR(opened.status());
  RingFiller& filler = **opened;
  const PageLocked page_locked(image.on_devices() ? session.devices : nullptr, filler.slots());

  RequestContext call = context;
  call.cancellation = Cancellation();  // of its own: what cannot be read ends the call, too
  const Cancellation::Registration cancelled =
      context.cancellation.OnCancel([ended = call.cancellation] { ended.Cancel(); });
  TC_RETURN_IF_ERROR(filler.Start(
      FillThreads(),
      [&image](int thread, uint64_t offset, HostSpan to) { return image.Write(thread, offset, to); },
      [ended = call.cancellation] { ended.Cancel(); }));
  // The threads run before the call begins: the daemon asks for bytes as soon as it has read the token, and
  // ends a put of which the ring stays empty.
  requests.front().set_offer_token(filler.token());
  const absl::Status put =
      rpc::CallBidiStream(link.daemon(), &v1::StoreDaemon::Stub::PutArtifact, call, requests.size(),
                          [&](size_t i) { return requests[i]; }, on_response,
                          {.retry_for = absl::ZeroDuration(), .what = "stream the tensors"});
  // Before the memory that it fills is no longer page-locked.
  const absl::Status filled = filler.Stop();
  // Where a tensor could not be read the call was cancelled for that, so its own status says less.
  return filled.ok() ? put : filled;
}

// The layout and the requests are made once, since attempts differ only in the token of their ring.
absl::StatusOr<v1::PutArtifactResult> PutUnder(otel::Span& span, Session& session,
                                               const RequestContext& operation,
                                               std::span<const PutTensor> given,
                                               const std::map<std::string, std::string>& metadata,
                                               const PutOptions& options) {
  const std::vector<PutTensor> tensors = InOrderOfBase(session, operation, given, options);
  TC_ASSIGN_OR_RETURN(const PutImage image, PutImage::Create(tensors, session.devices, FillThreads()));
  std::vector<v1::PutArtifactRequest> requests = DescribeTensors(image.layout());
  TC_RETURN_IF_ERROR(SetOptions(options, requests.front()));
  requests.front().mutable_metadata()->insert(metadata.begin(), metadata.end());

  // Once for all attempts: which memory can be handed over depends on this process, not on the daemon.
  const std::vector<HandedMemory> handed = FindHandedTensors(tensors, image.layout());
  return WithRetries(span, operation, options, "put", [&](OnResponse on_response) {
    return PutOnce(session, operation, image, handed, requests, on_response);
  });
}

struct OpenedModel {
  SafetensorsModel model;
  FilesBeside files;
};

// What this process opens of a model, so that its own permission counts. Aside, since the file system may
// hang.
absl::StatusOr<OpenedModel> OpenHere(const RequestContext& context, const std::string& path, bool files) {
  return RunAside<OpenedModel>(
      context, absl::StrCat("open ", path), [context, path, files]() -> absl::StatusOr<OpenedModel> {
        OpenedModel opened;
        TC_ASSIGN_OR_RETURN(opened.model, OpenSafetensors(context, ImportRoots::Everything(), path));
        if (files) {
          TC_ASSIGN_OR_RETURN(opened.files, OpenFilesBeside(context, opened.model));
        }
        return opened;
      });
}

// What this process opens of files beside tensors that are not in a folder with them. Aside, as above.
absl::StatusOr<FilesBeside> OpenFilesAt(const RequestContext& context,
                                        const std::vector<std::string>& paths) {
  return RunAside<FilesBeside>(context, "open the files", [context, paths]() -> absl::StatusOr<FilesBeside> {
    std::map<std::string, std::shared_ptr<ObjectReader>> opened;
    for (const std::string& path : paths) {
      TC_ASSIGN_OR_RETURN(const FoundObject found, ImportRoots::Everything().Find(context, path));
      FilesBeside files;
      if (found.folder != nullptr) {
        SafetensorsModel folder;
        folder.folder = found.folder;
        TC_ASSIGN_OR_RETURN(files, OpenFilesBeside(context, folder));
      } else {
        TC_ASSIGN_OR_RETURN(files,
                            FilesOf({found.object}, {std::filesystem::path(path).filename().string()}));
      }
      for (size_t i = 0; i < files.objects.size(); ++i) {
        const std::string& name = files.layout.tensors[i].name;
        if (opened.emplace(name, files.objects[i]).second) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("open the files: two are called ", QuoteName(name), "; name one of them"));
      }
    }
    if (opened.empty()) {
      return absl::InvalidArgumentError(
          "open the files: the folders have none but weights and hidden files; name others, or none");
    }
    std::vector<std::string> names;
    ObjectReaders objects;
    for (auto& [name, object] : opened) {
      names.push_back(name);
      objects.push_back(std::move(object));
    }
    return FilesOf(std::move(objects), names);
  });
}

absl::Status ImportOnce(DaemonLink& link, const RequestContext& context, std::span<const int> files,
                        v1::ImportArtifactRequest& request, OnResponse on_response) {
  std::unique_ptr<OfferedMemory> offer;
  if (!files.empty()) {
    TC_ASSIGN_OR_RETURN(const std::string handle_socket, link.HandleSocket(context));
    TC_ASSIGN_OR_RETURN(offer,
                        OfferedMemory::OfferFiles(handle_socket, files,
                                                  std::min(context.deadline, SteadyNow() + kOfferTimeout),
                                                  context.cancellation));
    // The daemon takes the files while the offer lives, so `offer` must outlast the call. A restarted daemon
    // knows no earlier token: each attempt offers again.
    request.set_offer_token(offer->token());
  }
  return rpc::CallServerStream(link.daemon(), &v1::StoreDaemon::Stub::ImportArtifact, context, request,
                               on_response, {.retry_for = absl::ZeroDuration(), .what = "follow the import"});
}

// Writes the manifest of what was imported from this path, by this process's own permission.
absl::Status WriteManifestBeside(DaemonLink& link, const RequestContext& operation, const std::string& path,
                                 const v1::PutArtifactResult& put) {
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(put.artifact_id());
  *request.mutable_location() = put.replica().location();
  request.set_manifest(true);
  rpc::PieceJoiner manifest;
  const auto on_response = [&](v1::MaterializeReplicaResponse&& response) {
    return manifest.Add(response.manifest_piece());
  };
  TC_RETURN_IF_ERROR(rpc::CallServerStream(link.daemon(), &v1::StoreDaemon::Stub::MaterializeReplica,
                                           operation, request, on_response, {.what = "get the manifest"}));
  if (ArtifactId(manifest.bytes()) != put.artifact_id()) {
    return absl::DataLossError("the daemon sent the manifest of another artifact; put the model again");
  }
  return ReplaceFile(ManifestUriOf(path), manifest.bytes(), 0644);
}

// Stores the files and binds them with the tensors that `put` stored under the key. After these: files that
// no key binds may go when room is needed.
absl::Status BindFiles(otel::Span& span, DaemonLink& link, const RequestContext& operation,
                       const FilesBeside& files, PutOptions options, v1::PutArtifactResult& put) {
  v1::BindKeyRequest bind;
  bind.set_key(*options.key);
  options.key.reset();
  options.keep.reset();
  options.base = "none";
  options.require_difference = false;
  options.on_progress = nullptr;
  options.location = "cpu";
  v1::ImportArtifactRequest request;
  TC_RETURN_IF_ERROR(SetOptions(options, request));
  request.set_path("the files");
  std::vector<int> descriptors;
  for (const auto& object : files.objects) descriptors.push_back(object->descriptor());
  for (const Tensor& file : files.layout.tensors) request.add_files(file.name);
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult stored,
                      WithRetries(span, operation, options, "store the files", [&](OnResponse on_response) {
                        return ImportOnce(link, operation, descriptors, request, on_response);
                      }));
  if (put.files_id() == stored.artifact_id()) return absl::OkStatus();  // the key has inherited them
  bind.set_artifact_id(put.artifact_id());
  bind.set_expected_revision(put.key_revision());
  bind.set_files_id(stored.artifact_id());
  TC_ASSIGN_OR_RETURN(const v1::BindKeyResponse bound,
                      rpc::CallUnary(link.global_store(), &v1::GlobalStore::Stub::BindKey, operation, bind,
                                     {.what = "bind the files"}));
  put.set_key_revision(bound.key().revision());
  put.set_files_id(bound.key().files_id());
  return absl::OkStatus();
}

absl::StatusOr<v1::PutArtifactResult> PutWithFiles(otel::Span& span, Session& session,
                                                   const RequestContext& operation,
                                                   std::span<const PutTensor> tensors,
                                                   const std::map<std::string, std::string>& metadata,
                                                   const PutOptions& options) {
  if (options.files_at.empty()) return PutUnder(span, session, operation, tensors, metadata, options);
  if (!options.key.has_value()) {
    return absl::InvalidArgumentError("put: files need a key, and no key was given; name a key");
  }
  TC_ASSIGN_OR_RETURN(const FilesBeside files, OpenFilesAt(operation, options.files_at));
  TC_ASSIGN_OR_RETURN(v1::PutArtifactResult put,
                      PutUnder(span, session, operation, tensors, metadata, options));
  TC_RETURN_IF_ERROR(
      Annotate(BindFiles(span, *session.link, operation, files, options, put),
               absl::StrCat(put.artifact_id(), " is stored as ", *options.key, ", without its files")));
  return put;
}

// With the credentials of this process, in the place of the daemon's, which may not read the URI
// (`refused`).
absl::StatusOr<v1::PutArtifactResult> ImportAsClient(
    const RequestContext& operation, const std::string& uri, const absl::Status& refused,
    absl::FunctionRef<absl::StatusOr<v1::PutArtifactResult>(std::span<const int>)> import) {
  const auto with_reason = [&](std::string_view reason) {
    return absl::PermissionDeniedError(
        absl::StrCat(refused.message(), "; the credentials of this process are not used: ", reason));
  };
  const absl::StatusOr<std::optional<objects::ClientCredentials>> own =
      objects::FindClientCredentials(operation, uri, objects::ProcessEnvironment());
  if (!own.ok()) return with_reason(own.status().message());
  if (!own->has_value()) return with_reason("it has none for this URI");
  TC_ASSIGN_OR_RETURN(const UniqueFd credentials, objects::Hand(**own));
  const int file = credentials.get();
  return import({&file, 1});
}

absl::StatusOr<v1::PutArtifactResult> ImportUnder(otel::Span& span, DaemonLink& link,
                                                  const RequestContext& operation, const std::string& path,
                                                  const PutOptions& options) {
  v1::ImportArtifactRequest request;
  TC_RETURN_IF_ERROR(SetOptions(options, request));
  request.set_verify(options.verify);
  request.set_no_files(!options.files);
  request.set_manifest_beside(options.manifest_beside);
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "import: the path of the model is empty; name a file, a folder or a URI");
  }
  if (!IsValidUtf8(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", QuoteName(ShownUri(path)),
                     ": the path is not valid UTF-8; rename the file or its folder"));
  }
  if (const std::string_view secret = SecretIn(path); !secret.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("import ", ShownUri(path), ": ", secret));
  }
  const bool is_uri = IsObjectUri(path);
  std::error_code error;  // the daemon has a working directory of its own
  request.set_path(is_uri ? path : std::filesystem::absolute(path, error).string());
  if (error) return ErrnoStatus(error.value(), "make absolute", path);

  const std::string what = absl::StrCat("import ", ShownUri(path));
  const auto import = [&](std::span<const int> files) {
    return WithRetries(span, operation, options, what, [&](OnResponse on_response) {
      return ImportOnce(link, operation, files, request, on_response);
    });
  };
  // Where the daemon's handle socket cannot be reached it reads the path itself, on its host.
  const bool is_local = IsUnixAddress(link.address()) && link.HandleSocket(operation).ok();
  if (is_uri) {
    absl::StatusOr<v1::PutArtifactResult> result = import({});
    if (!is_local || !absl::IsPermissionDenied(result.status())) return result;
    return ImportAsClient(operation, path, result.status(), import);
  }
  OpenedModel opened_here;
  std::vector<int> files;
  if (is_local) {
    absl::StatusOr<OpenedModel> opened =
        OpenHere(operation, request.path(), options.files && options.key.has_value());
    if (!opened.ok()) return Annotate(opened.status(), what);
    opened_here = *std::move(opened);
    const SafetensorsModel& model = opened_here.model;
    for (const auto& object : model.objects) files.push_back(object->descriptor());
    request.mutable_shards()->Assign(model.shards.begin(), model.shards.end());
    for (const auto& object : opened_here.files.objects) files.push_back(object->descriptor());
    for (const Tensor& file : opened_here.files.layout.tensors) request.add_files(file.name);
  }
  if (!options.manifest_beside) return import(files);
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": this process does not open the files, so it cannot write a manifest beside them; ",
        "connect to the daemon of the host that has them"));
  }
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result, import(files));
  TC_RETURN_IF_ERROR(Annotate(
      WriteManifestBeside(link, operation, request.path(), result),
      absl::StrCat(result.artifact_id(), " is stored, and its manifest is not written beside ", path)));
  return result;
}

// The file as an import would describe it: by its real path.
absl::StatusOr<ObjectIdentity> DescribeFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return ErrnoStatus(error.value(), "find", path);
  struct stat about{};
  if (stat(real.c_str(), &about) != 0) return ErrnoStatus(errno, "stat", path);
  return IdentityOf(real.string(), about);
}

// The global store finds artifacts by the path of their origin. Only an origin on this node with the same
// identity (size, times, inode, device) is this very file; of several artifacts the latest counts.
absl::StatusOr<ImportedFile> FindImportedBy(DaemonLink& link, const RequestContext& operation,
                                            const std::string& path) {
  TC_ASSIGN_OR_RETURN(const ObjectIdentity file, DescribeFile(path));
  v1::ListArtifactsRequest request;
  request.set_origin_path(file.uri);
  TC_ASSIGN_OR_RETURN(const v1::ListArtifactsResponse listed,
                      AllPages(link.global_store(), &v1::GlobalStore::Stub::ListArtifacts, operation, request,
                               "find an import"));
  if (listed.artifacts().empty()) {
    return absl::NotFoundError(absl::StrCat("find import ", path, ": it was not imported; import it"));
  }
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                      rpc::CallUnary(link.daemon(), &v1::StoreDaemon::Stub::GetStatus, operation,
                                     v1::GetStatusRequest(), {.what = "get the id of the node"}));
  const v1::Artifact* latest = nullptr;
  const v1::Origin* from = nullptr;
  for (const v1::Artifact& artifact : listed.artifacts()) {
    if (latest != nullptr && rpc::FromProto(artifact.created()) < rpc::FromProto(latest->created())) continue;
    const auto origin = std::ranges::find_if(artifact.origins(), [&](const v1::Origin& one) {
      const std::vector<ObjectIdentity> objects = rpc::FromProto(one).objects;
      return one.node_id() == status.node().node_id() && std::ranges::find(objects, file) != objects.end();
    });
    if (origin == artifact.origins().end()) continue;
    latest = &artifact;
    from = &*origin;
  }
  if (latest == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("find import ", path, ": this node imported another file at this path; import it"));
  }
  return ImportedFile{.artifact_id = latest->artifact_id(),
                      .files = static_cast<size_t>(from->objects_size())};
}

}  // namespace

absl::StatusOr<PutResult> Client::Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      const PutOptions& options) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Put", operation, {{otel::attr::kOperationType, "put"}});
  if (options.key.has_value()) span.SetAttribute(otel::attr::kKey, *options.key);
  span.AttachTo(&operation);
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result,
                      span.Record(PutWithFiles(span, *session_, operation, tensors, metadata, options)));
  return ResultOf(result);
}

absl::StatusOr<PutResult> Client::Import(const RequestContext& context, const std::string& path,
                                         const PutOptions& options) {
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result, session_->calls.Import(context, path, options));
  return ResultOf(result);
}

absl::StatusOr<v1::PutArtifactResult> AdminClient::Import(const RequestContext& context,
                                                          const std::string& path,
                                                          const PutOptions& options) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Put", operation, {{otel::attr::kOperationType, "import"}});
  if (options.key.has_value()) span.SetAttribute(otel::attr::kKey, *options.key);
  span.AttachTo(&operation);
  return span.Record(ImportUnder(span, *link_, operation, path, options));
}

absl::StatusOr<ImportedFile> Client::FindImported(const RequestContext& context, const std::string& path) {
  return InSpan("Client/FindImported", context, [&](const RequestContext& operation) {
    return FindImportedBy(*session_->link, operation, path);
  });
}

}  // namespace tensorcast::client
