#include "daemon/service/model_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/aside.h"
#include "base/status.h"
#include "base/text.h"
#include "core/disk/import_verifier.h"
#include "core/disk/mapped_pages.h"
#include "core/disk/offered_files.h"
#include "core/safetensors/safetensors.h"
#include "core/source/detached_source.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/origin_files.h"

namespace tensorcast::daemon {
namespace {

// What OpenModel finds out aside.
struct Found {
  SafetensorsModel model;  // but for its files, which the source has
  std::unique_ptr<ChunkSource> source;
  bool may_hang = false;
  v1::Origin origin;
  std::shared_ptr<SecondReading> second;
};

absl::Status AddToOrigin(const OpenedFile& opened, v1::Origin& origin) {
  const FileIdentity& file = opened.identity;
  if (!IsValidUtf8(file.path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path ", QuoteName(file.path),
                                                   " is not valid UTF-8: rename the file or its folder"));
  }
  *origin.add_files() = DescribeOriginFile(file);
  if (!UntraceableFileSystem(opened).empty()) origin.set_untraceable(true);
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsModel> ReadOffered(const RequestContext& context,
                                             const v1::ImportArtifactRequest& request, ForeignFds offered) {
  if (static_cast<size_t>(request.shards_size()) != offered.size()) {
    return absl::InvalidArgumentError(absl::StrCat(offered.size(), " files were offered, and ",
                                                   request.shards_size(), " are named: name each of them"));
  }
  for (const std::string& shard : request.shards()) {
    if (!IsValidUtf8(shard)) return absl::InvalidArgumentError("the name of a shard is not valid UTF-8");
  }
  TC_ASSIGN_OR_RETURN(std::vector<OpenedFile> files,
                      DescribeOfferedFiles(context, std::move(offered).Take()));
  return ReadSafetensors(std::move(files), {request.shards().begin(), request.shards().end()});
}

// Closing the files may wait as long as reading them.
std::shared_ptr<SecondReading> ClosedAside(SecondReading reading) {
  return {new SecondReading(std::move(reading)), [](SecondReading* files) {
            if (!RunDetached([files] { delete files; })) delete files;
          }};
}

absl::StatusOr<Found> Find(const RequestContext& context, const ImportRoots& roots,
                           const v1::ImportArtifactRequest& request, ForeignFds offered) {
  const bool was_offered = !offered.empty();
  Found found;
  TC_ASSIGN_OR_RETURN(found.model, was_offered ? ReadOffered(context, request, std::move(offered))
                                               : OpenSafetensors(context, roots, request.path()));
  std::vector<OpenedFile>& files = found.model.files;
  // What was offered may lie where this daemon cannot read it again: no origin, and no copy.
  const bool again =
      std::ranges::all_of(files, [&](const OpenedFile& file) { return !was_offered || roots.LeadTo(file); });
  if (again) {
    for (const OpenedFile& file : files) TC_RETURN_IF_ERROR(AddToOrigin(file, found.origin));
  }
  if (request.verify()) {
    TC_ASSIGN_OR_RETURN(std::vector<OpenedFile> same, Duplicate(files));
    found.second = ClosedAside({std::move(same), found.model.shards});
  }
  found.may_hang = MayHang(files);
  TC_ASSIGN_OR_RETURN(found.source, OpenFileSource(std::move(files), std::move(found.model.extents),
                                                   found.model.layout.image_bytes));
  return found;
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

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, const ImportRoots& roots,
                                      const v1::ImportArtifactRequest& request, ForeignFds offered) {
  TC_ASSIGN_OR_RETURN(Found found,
                      RunAside<Found>(context, absl::StrCat("open ", QuoteName(request.path())),
                                      [context, roots, request, offered = std::move(offered)]() mutable {
                                        return Find(context, roots, request, std::move(offered));
                                      }));
  OpenedModel opened{.layout = std::move(found.model.layout),
                     .metadata = std::move(found.model.metadata),
                     .origin = std::move(found.origin),
                     .second = std::move(found.second)};
  if (found.may_hang) {
    auto source = std::make_unique<DetachedSource>(std::move(found.source));
    opened.source = source.get();
    opened.sources = std::make_shared<DetachedSourceProvider>(std::move(source));
  } else {
    opened.source = found.source.get();
    opened.sources = MakeSingleSourceProvider(std::move(found.source));
  }
  return opened;
}

// The headers and the bytes that they describe: was something written between the two passes, or during one?
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SecondReading> files,
                            std::shared_ptr<const Manifest> manifest) {
  return RunAside<bool>(
             context, "read the files again",
             [context, files = std::move(files),
              manifest = std::move(manifest)]() mutable -> absl::StatusOr<bool> {
               TC_ASSIGN_OR_RETURN(SafetensorsModel model,
                                   ReadSafetensorsAgain(std::move(files->files), files->shards, *manifest));
               TC_RETURN_IF_ERROR(CompareAgain(context, std::move(model.files), model.extents, *manifest));
               return true;
             })
      .status();
}

}  // namespace tensorcast::daemon
