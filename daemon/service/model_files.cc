#include "daemon/service/model_files.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/aside.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/digest.h"
#include "core/artifact/object_uri.h"
#include "core/disk/import_verifier.h"
#include "core/disk/offered_files.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/manifest_beside.h"
#include "core/source/detached_source.h"
#include "core/source/object_source.h"
#include "daemon/session/sessions.h"

namespace tensorcast::daemon {
namespace {

absl::Status AddToOrigin(const ObjectReader& object, Origin& origin) {
  const ObjectIdentity& identity = object.identity();
  if (!IsValidUtf8(identity.uri)) {
    return absl::InvalidArgumentError(absl::StrCat("import ", QuoteName(identity.uri),
                                                   ": the path is not valid UTF-8; rename the file or its "
                                                   "folder"));
  }
  origin.objects.push_back(identity);
  // What others can replace or delete at any time is a source, and never a copy.
  origin.untraceable |= !object.traits().traceable || IsObjectUri(identity.uri);
  return absl::OkStatus();
}

// The tensors of a model and the files beside them, which are two artifacts. Either may be missing.
struct FoundModel {
  SafetensorsModel model;
  FilesBeside files;
};

absl::StatusOr<FoundModel> ReadOffered(const RequestContext& context,
                                       const v1::ImportArtifactRequest& request, ForeignFds offered) {
  const size_t shards = request.shards_size();
  if (shards + request.files_size() != offered.size()) {
    return absl::InvalidArgumentError(absl::StrCat("read the files of an import: the call passed ",
                                                   offered.size(), " files and named ",
                                                   shards + request.files_size(), "; name each file once"));
  }
  for (const std::string& shard : request.shards()) {
    if (IsValidUtf8(shard)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "import ", QuoteName(shard), ": the name of this shard is not valid UTF-8; rename the file"));
  }
  TC_ASSIGN_OR_RETURN(ObjectReaders objects, OpenOfferedFiles(context, std::move(offered).Take()));
  FoundModel found;
  TC_ASSIGN_OR_RETURN(found.files, FilesOf({objects.begin() + static_cast<ptrdiff_t>(shards), objects.end()},
                                           {request.files().begin(), request.files().end()}));
  objects.resize(shards);
  if (objects.empty()) return found;  // files alone, which the client will bind with tensors
  TC_ASSIGN_OR_RETURN(found.model,
                      ReadSafetensors(context, objects, {request.shards().begin(), request.shards().end()}));
  return found;
}

absl::StatusOr<FoundModel> FindModel(const RequestContext& context, const ObjectStore& store,
                                     const v1::ImportArtifactRequest& request) {
  FoundModel found;
  TC_ASSIGN_OR_RETURN(found.model, OpenSafetensors(context, store, request.path()));
  // The files (configuration, tokenizer) are imported for a key alone, which binds them with the tensors.
  if (request.has_binding() && !request.no_files()) {
    TC_ASSIGN_OR_RETURN(found.files, OpenFilesBeside(context, found.model));
  }
  return found;
}

// Closing files may wait as long as reading them.
std::shared_ptr<SafetensorsModel> ClosedAside(SafetensorsModel model) {
  return {new SafetensorsModel(std::move(model)), [](SafetensorsModel* closed) {
            if (!RunDetached([closed] { delete closed; })) delete closed;
          }};
}

// The one source that it is given, which tells of its waits.
class DetachedSourceProvider final : public SourceProvider {
 public:
  explicit DetachedSourceProvider(std::unique_ptr<DetachedSource> source)
      : source_(source.get()), provider_(MakeSingleSourceProvider(std::move(source))) {}

  void ObserveWaits(const WaitObserver& observer) override { source_->ObserveWaits(observer); }
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    return provider_->Next(context, ended, needed);
  }

 private:
  DetachedSource* const source_;  // lives until Next has given it
  const std::shared_ptr<SourceProvider> provider_;
};

std::shared_ptr<SourceProvider> ProviderOf(std::unique_ptr<ChunkSource> source, bool may_hang) {
  // Files that may hang are read by a source that the ingest can leave alone.
  if (!may_hang) return MakeSingleSourceProvider(std::move(source));
  return std::make_shared<DetachedSourceProvider>(std::make_unique<DetachedSource>(std::move(source)));
}

// The same objects in the same versions give the same artifact, whichever node reads them. Files have paths
// of one node, and a version that may miss a write does not tell objects apart.
std::string ImportIdOf(const ObjectReaders& objects) {
  Origin read;
  for (const std::shared_ptr<ObjectReader>& object : objects) {
    if (!object->traits().traceable || !IsObjectUri(object->identity().uri)) return "";
    read.objects.push_back(object->identity());
  }
  const std::string encoded = EncodeOrigin(read);
  return ComputeBlake3(std::as_bytes(std::span(encoded))).ToHex();
}

// `found`: a SafetensorsModel, or FilesBeside. `as_client`: by what the client brought, its files or its
// credentials.
template <class Found>
absl::StatusOr<OpenedModel> SourceOf(const RequestContext& context, const ObjectStore& own, bool as_client,
                                     Found& found) {
  OpenedModel opened;
  // What the client may read this daemon may not be able to read again: no origin, and no copy.
  const bool again = std::ranges::all_of(found.objects, [&](const std::shared_ptr<ObjectReader>& object) {
    return !as_client || own.OpenAgain(context, object->identity()).ok();
  });
  opened.import_id = ImportIdOf(found.objects);
  opened.promised = FindPromises(found.objects, found.extents);
  bool may_hang = false;
  for (const auto& object : found.objects) {
    if (again) TC_RETURN_IF_ERROR(AddToOrigin(*object, opened.origin));
    may_hang |= object->traits().may_hang;
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(found.objects, found.extents, found.layout.image_bytes));
  opened.sources = ProviderOf(std::move(source), may_hang);
  opened.layout = std::move(found.layout);
  return opened;
}

absl::StatusOr<OpenedModel> OpenHere(const RequestContext& context, ModelPlaces places,
                                     const v1::ImportArtifactRequest& request) {
  const ObjectStore& store = places.of_client != nullptr ? *places.of_client : *places.own;
  const bool as_client = places.of_client != nullptr || !places.offered.empty();
  TC_ASSIGN_OR_RETURN(FoundModel found, places.offered.empty()
                                            ? FindModel(context, store, request)
                                            : ReadOffered(context, request, std::move(places.offered)));
  // There are files alone, without tensors: they are the artifact.
  if (found.model.objects.empty()) {
    TC_ASSIGN_OR_RETURN(OpenedModel files, SourceOf(context, *places.own, as_client, found.files));
    files.kind = ArtifactKind::kFiles;
    return files;
  }
  std::shared_ptr<const Manifest> beside;
  if (IsObjectUri(request.path())) {
    TC_ASSIGN_OR_RETURN(beside, FindManifestBeside(context, store, request.path(), found.model));
  }
  TC_ASSIGN_OR_RETURN(OpenedModel opened, SourceOf(context, *places.own, as_client, found.model));
  opened.beside = std::move(beside);
  opened.metadata = std::move(found.model.metadata);
  if (request.verify()) opened.second = ClosedAside(std::move(found.model));
  if (found.files.objects.empty()) return opened;
  TC_ASSIGN_OR_RETURN(OpenedModel files, SourceOf(context, *places.own, as_client, found.files));
  files.kind = ArtifactKind::kFiles;
  opened.files = std::make_shared<OpenedModel>(std::move(files));
  return opened;
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, ModelPlaces places,
                                      const v1::ImportArtifactRequest& request) {
  // The files are opened aside, since opening files of a network file system may hang: the call can leave the
  // opening alone.
  return RunAside<OpenedModel>(context, absl::StrCat("open ", QuoteName(ShownUri(request.path()))),
                               [context, places = std::move(places), request]() mutable {
                                 return OpenHere(context, std::move(places), request);
                               });
}

// The headers and the bytes that they describe: was something written between the two passes, or during one?
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SafetensorsModel> model,
                            std::shared_ptr<const Manifest> manifest) {
  return RunAside<bool>(
             context, "read the files again",
             [context, model = std::move(model), manifest = std::move(manifest)]() -> absl::StatusOr<bool> {
               TC_RETURN_IF_ERROR(ReadSafetensorsAgain(context, *manifest, *model));
               TC_RETURN_IF_ERROR(CompareAgain(context, model->objects, model->extents, *manifest));
               return true;
             })
      .status();
}

}  // namespace tensorcast::daemon
