// The files beside a model's tensors: config.json, tokenizer, adapter_config.json, licence. They become an
// artifact of kind `files` (core/artifact/manifest.h), which a key binds together with the tensors. Functions
// only, thread-safe.
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

// Files and the image that they become: a file is a tensor of the layout, in the order of paths.
struct FilesBeside {
  ObjectReaders objects;  // one for each tensor of the layout
  std::vector<ObjectExtent> extents;
  ImageLayout layout;
};

// Whether the path names tensors, of whatever format, or an index of them: no file beside tensors.
bool IsWeightsFile(std::string_view path);

// The files of the model's folder and the folders below it, but weights, its shards and what is hidden. None
// of a model that was not found in a folder, or of a folder that cannot be listed. INVALID_ARGUMENT where
// they are too many or too large, or one has a name that an artifact cannot have.
absl::StatusOr<FilesBeside> OpenFilesBeside(const RequestContext& context, const SafetensorsModel& model);
// Of files that were opened before. `paths` are their names, ascending. Errors as above.
absl::StatusOr<FilesBeside> FilesOf(ObjectReaders objects, const std::vector<std::string>& paths);

// Writes each file of the layout (CheckFileLayout) below the folder, which is made where it is not there,
// over a file that has the same path. `bytes_of` gives the bytes of a tensor. A file appears whole or not at
// all. Errors as of WriteSafetensors.
absl::Status WriteFiles(const std::string& folder, const ImageLayout& layout,
                        absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                        const RequestContext& context = {});

}  // namespace tensorcast
