#include "client/put_files.h"

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/aside.h"
#include "base/status.h"
#include "base/text.h"
#include "client/put_calls.h"
#include "core/artifact/object_uri.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/safetensors.h"
#include "rpc/call.h"

namespace tensorcast::client {

// Aside, since the file system may hang.
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
  TC_RETURN_IF_ERROR(SetPutOptions(options, request));
  request.set_path("the files");
  std::vector<int> descriptors;
  for (const auto& object : files.objects) descriptors.push_back(object->descriptor());
  for (const Tensor& file : files.layout.tensors) request.add_files(file.name);
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult stored,
                      FollowPut(span, operation, options, "store the files", [&](OnPutResponse on_response) {
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

}  // namespace tensorcast::client
