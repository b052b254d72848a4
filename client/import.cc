// Client::Import: a new artifact at the daemon, from files of this host or from objects.

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/aside.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/text.h"
#include "client/put_calls.h"
#include "client/session.h"
#include "core/artifact/manifest.h"
#include "core/artifact/object_uri.h"
#include "core/disk/file_io.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/manifest_beside.h"
#include "core/safetensors/safetensors.h"
#include "objects/client_credentials.h"
#include "objects/credentials/profile.h"
#include "otel/api/span.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

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
    return absl::DataLossError(absl::StrCat("get the manifest of ", put.artifact_id(),
                                            ": the daemon sent the manifest of another artifact; report this "
                                            "defect of the daemon"));
  }
  return ReplaceFile(ManifestUriOf(path), manifest.bytes(), 0644);
}

// With the credentials of this process, in the place of the daemon's, which may not read the URI
// (`refused`).
absl::StatusOr<v1::PutArtifactResult> ImportAsClient(
    const RequestContext& operation, const std::string& uri, const absl::Status& refused,
    absl::FunctionRef<absl::StatusOr<v1::PutArtifactResult>(std::span<const int>)> import) {
  const auto with_reason = [&](std::string_view reason) {
    return absl::PermissionDeniedError(
        absl::StrCat(refused.message(), "; the credentials of this process were not used: ", reason));
  };
  const absl::StatusOr<std::optional<objects::ClientCredentials>> own =
      objects::FindClientCredentials(operation, uri, objects::ProcessEnvironment());
  if (!own.ok()) return with_reason(own.status().message());
  if (!own->has_value()) return with_reason("this process has no credentials for this URI");
  TC_ASSIGN_OR_RETURN(const UniqueFd credentials, objects::Hand(**own));
  const int file = credentials.get();
  return import({&file, 1});
}

// Three ways, by what reads the bytes: the daemon reads a URI, with its own credentials or, where it may not,
// with those of this process; the daemon reads files that this process opened and hands over by the handle
// socket; or, from another host, the daemon opens the path itself.
absl::StatusOr<v1::PutArtifactResult> ImportUnder(otel::Span& span, DaemonLink& link,
                                                  const RequestContext& operation, const std::string& path,
                                                  const PutOptions& options) {
  v1::ImportArtifactRequest request;
  TC_RETURN_IF_ERROR(SetPutOptions(options, request));
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
  if (error) return ErrnoStatus(error.value(), "find the absolute path of", path);

  const std::string what = absl::StrCat("import ", ShownUri(path));
  const auto import = [&](std::span<const int> files) {
    return FollowPut(span, operation, options, what, [&](OnPutResponse on_response) {
      return ImportOnce(link, operation, files, request, on_response);
    });
  };
  // Where the daemon's handle socket cannot be reached it reads the path itself, on its host.
  const absl::Status handles = IsUnixAddress(link.address())
                                   ? link.HandleSocket(operation).status()
                                   : absl::FailedPreconditionError(
                                         "the daemon may be on another host; run the import on the host that "
                                         "has the files, over the socket of that host's daemon");
  const bool is_local = handles.ok();
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
    // The order of the descriptors: the shards of the model as `shards` names them, then the files as `files`
    // names them.
    request.mutable_shards()->Assign(model.shards.begin(), model.shards.end());
    for (const auto& object : opened_here.files.objects) files.push_back(object->descriptor());
    for (const Tensor& file : opened_here.files.layout.tensors) request.add_files(file.name);
  }
  if (!options.manifest_beside) return import(files);
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": the daemon opens the files, so this process cannot write a manifest beside them: ",
        handles.message()));
  }
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result, import(files));
  TC_RETURN_IF_ERROR(Annotate(
      WriteManifestBeside(link, operation, request.path(), result),
      absl::StrCat(result.artifact_id(), " is stored, but its manifest was not written beside ", path)));
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
    return absl::NotFoundError(
        absl::StrCat("find the import of ", path, ": this file was not imported; import the model"));
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
        absl::StrCat("find the import of ", path,
                     ": this path was imported by another node, or before the file changed; import the model "
                     "on this node again"));
  }
  return ImportedFile{.artifact_id = latest->artifact_id(),
                      .files = static_cast<size_t>(from->objects_size())};
}

}  // namespace

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
