// The files beside a model's tensors: config.json, tokenizer, adapter_config.json, licence. They become an
// artifact of kind `files` (core/artifact/manifest.h). A key names this artifact together with the tensors'
// artifact. Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

inline constexpr size_t kMaxFilesBeside = 512;
inline constexpr uint64_t kMaxBytesBeside = uint64_t{4} << 30;

// Files and the image that they become. Each file is a tensor of the layout, in the order of paths.
struct FilesBeside {
  ObjectReaders objects;  // one for each tensor of the layout
  std::vector<ObjectExtent> extents;
  ImageLayout layout;
};

// Whether the path names a file of tensors in any format, or an index of tensors.
bool IsWeightsFile(std::string_view path);

// Opens the files in the model's folder and the folders below it, except weights, the model's shards and
// hidden files. Empty for a model that was not found in a folder, or if the folder cannot be listed.
// INVALID_ARGUMENT for more than kMaxFilesBeside files or kMaxBytesBeside bytes, and for a file name that an
// artifact cannot have.
absl::StatusOr<FilesBeside> OpenFilesBeside(const RequestContext& context, const SafetensorsModel& model);
// As OpenFilesBeside, for files that are open already. `paths` are their names, ascending.
absl::StatusOr<FilesBeside> FilesOf(ObjectReaders objects, const std::vector<std::string>& paths);

// Writes each file of the layout (CheckFileLayout) below the folder, and replaces files of the same path.
// Makes a missing folder. `bytes_of` returns the bytes of a tensor. A file appears completely or not at all.
// Errors as WriteSafetensors.
absl::Status WriteFiles(const std::string& folder, const ImageLayout& layout,
                        absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                        const RequestContext& context = {});

}  // namespace tensorcast
