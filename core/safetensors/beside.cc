#include "core/safetensors/beside.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/manifest.h"
#include "core/safetensors/manifest_beside.h"
#include "core/safetensors/output_file.h"

namespace tensorcast {
namespace {

// The paths that are listed at most, weights among them.
constexpr size_t kMaxListed = 10'000;

// Files of weights in any format, and files that belong to these. A model that is put has its weights as
// tensors, so these files would be a second copy.
constexpr std::string_view kWeightsEndings[] = {".safetensors",
                                                ".bin",
                                                ".pt",
                                                ".pth",
                                                ".ckpt",
                                                ".gguf",
                                                ".ggml",
                                                ".onnx",
                                                ".h5",
                                                ".msgpack",
                                                ".ot",
                                                ".tflite",
                                                ".pkl",
                                                ".onnx_data",
                                                ".index.json",
                                                ".llamafile",
                                                kManifestExtension};

absl::Status TooMuch(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("open the files beside the tensors: ", what,
                   "; move files that do not belong to the model to another folder, or put the model "
                   "without files (--no-files)"));
}

}  // namespace

bool IsWeightsFile(std::string_view path) {
  return std::ranges::any_of(kWeightsEndings,
                             [&](std::string_view ending) { return path.ends_with(ending); });
}

absl::StatusOr<FilesBeside> OpenFilesBeside(const RequestContext& context, const SafetensorsModel& model) {
  if (model.folder == nullptr) return FilesBeside();
  absl::StatusOr<std::vector<std::string>> paths = model.folder->ListBelow(context, kMaxListed);
  // A folder that may not be listed can hold a model: it comes without files.
  if (absl::IsPermissionDenied(paths.status()) || absl::IsUnimplemented(paths.status())) return FilesBeside();
  TC_RETURN_IF_ERROR(paths.status());
  if (paths->size() > kMaxListed) {
    return TooMuch(absl::StrCat("the folder holds more than ", kMaxListed, " files"));
  }
  // Shards are left out by name too: an index may give them any.
  std::erase_if(*paths, [&model](const std::string& path) {
    return IsWeightsFile(path) || std::ranges::count(model.shards, path) > 0;
  });
  if (paths->size() > kMaxFilesBeside) {
    return TooMuch(
        absl::StrCat("the folder holds more than ", kMaxFilesBeside, " files that are not weights"));
  }
  ObjectReaders objects;
  for (const std::string& path : *paths) {
    TC_ASSIGN_OR_RETURN(objects.emplace_back(), model.folder->Open(context, path));
  }
  return FilesOf(std::move(objects), *paths);
}

absl::StatusOr<FilesBeside> FilesOf(ObjectReaders objects, const std::vector<std::string>& paths) {
  FilesBeside files{.objects = std::move(objects), .extents = {}, .layout = {}};
  if (files.objects.size() != paths.size()) {
    return absl::InvalidArgumentError(absl::StrCat("open the files beside the tensors: ", paths.size(),
                                                   " paths were given for ", files.objects.size(),
                                                   " files; pass one path for each file"));
  }
  if (paths.size() > kMaxFilesBeside) {
    return absl::InvalidArgumentError(absl::StrCat("open the files beside the tensors: ", paths.size(),
                                                   " files were given; pass at most ", kMaxFilesBeside));
  }
  uint64_t bytes = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const uint64_t file_bytes = files.objects[i]->identity().bytes;
    bytes += std::min(file_bytes, kMaxBytesBeside + 1);  // so that no sum overflows
    if (bytes > kMaxBytesBeside) {
      return TooMuch(absl::StrCat("the files have more than ", kMaxBytesBeside, " bytes together"));
    }
    files.layout.tensors.push_back(
        {.name = paths[i], .dtype = DType::kU8, .shape = {file_bytes}, .nbytes = file_bytes});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(files.layout));
  TC_RETURN_IF_ERROR(CheckFileLayout(files.layout));
  for (size_t i = 0; i < paths.size(); ++i) {
    const Tensor& file = files.layout.tensors[i];
    // An empty file has no bytes to be read.
    if (file.nbytes == 0) continue;
    files.extents.push_back({.object = static_cast<uint32_t>(i),
                             .object_offset = 0,
                             .image_offset = file.offset,
                             .bytes = file.nbytes});
  }
  return files;
}

absl::Status WriteFiles(const std::string& folder, const ImageLayout& layout,
                        absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                        const RequestContext& context) {
  TC_RETURN_IF_ERROR(CheckFileLayout(layout));
  // The names become paths: the check above keeps them within the folder, since a layout may come from
  // another node.
  for (const Tensor& tensor : layout.tensors) {
    const std::filesystem::path path = std::filesystem::path(folder) / tensor.name;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) return ErrnoStatus(error.value(), "create folder", path.parent_path().string());
    const ConstHostSpan bytes = bytes_of(tensor);
    if (bytes.size() != tensor.nbytes) {
      return absl::InvalidArgumentError(absl::StrCat("write file ", QuoteName(tensor.name), ": the file has ",
                                                     tensor.nbytes, " bytes, and ", bytes.size(),
                                                     " bytes were given; pass all bytes"));
    }
    // File by file: after an error the files that are written already stay, each of them whole.
    OutputFile file(path.string(), context);
    TC_RETURN_IF_ERROR(file.Create(tensor.nbytes));
    TC_RETURN_IF_ERROR(file.Append(bytes));
    TC_RETURN_IF_ERROR(file.Publish());
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
