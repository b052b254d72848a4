// Reading and writing the safetensors format (https://github.com/huggingface/safetensors#format): single
// files, and directories with a model.safetensors.index.json. Only headers are parsed here; an object source
// (core/source) reads tensor bytes. Functions only, thread-safe. A malformed file gives an error, never a
// crash.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// A parsed header.
struct SafetensorsHeader {
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<uint64_t> shape;
    ByteRange data;  // relative to the data section
  };
  std::vector<Entry> tensors;                   // in the order of their data
  std::map<std::string, std::string> metadata;  // __metadata__
  bool has_metadata = false;                    // though it may be empty
  uint64_t data_offset = 0;                     // where the data section begins in the file
  uint64_t data_bytes = 0;
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

// A file with an empty __metadata__ differs from a file without __metadata__. Models and artifacts cannot
// tell empty metadata from none, so they represent an empty __metadata__ by only this key with an empty
// value.
inline constexpr std::string_view kEmptyMetadataKey = "__metadata__";

// As TensorBytes, and by the format's own rule: the product of the dimensions, taken in order, must not
// overflow before a zero is reached.
absl::StatusOr<uint64_t> SafetensorsTensorBytes(DType dtype, const std::vector<uint64_t>& shape);

// Checks all requirements of the format: a valid JSON object without repeated keys, known dtypes, sizes that
// follow from shapes, data that covers the section without holes or overlaps. INVALID_ARGUMENT names the
// tensor and the violation. `header` is the JSON (without the 8-byte length); `data_bytes` is the size of the
// data section behind it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes);

// A model and the image it becomes: tensors by shard name, then by offset.
struct SafetensorsModel {
  ObjectReaders objects;              // the files, with headers that were read
  std::vector<std::string> shards;    // the name of each object in the keys of `metadata`
  std::vector<ObjectExtent> extents;  // where the tensors' bytes are, in image order; neighbours are joined
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<ObjectFolder> folder =
      {};  // that it was found in; null: its file was named, or objects were
};

// Opens the model at `uri`: a .safetensors file, or a folder with model.safetensors.index.json, a single
// model.safetensors, or an adapter's adapter_model.safetensors. If the folder cannot be listed, these names
// are tried. Nothing outside the folder is read. If shards disagree about a metadata key, the first shard
// keeps it and the value of the other shard is stored under "<shard>/<key>". INVALID_ARGUMENT, naming file
// and tensor, for a malformed model; NOT_FOUND for a folder without a model; the error of `store` for an
// object that cannot be opened, or when the context ends.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const RequestContext& context, const ObjectStore& store,
                                                 const std::string& uri);
// As above, for tools: opens files that this process may read. NOT_FOUND for a missing file or shard.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const std::string& path);
// Reads the model that these objects make up, in this order, for objects that are open already. `shards` are
// their names in the keys of the metadata; if empty, their URIs are used.
absl::StatusOr<SafetensorsModel> ReadSafetensors(const RequestContext& context, const ObjectReaders& objects,
                                                 std::vector<std::string> shards = {});
// Reads the headers of a model a second time, and replaces the contents of `model`. `manifest` was made from
// the first reading; ABORTED when the headers now describe other tensors or metadata.
absl::Status ReadSafetensorsAgain(const RequestContext& context, const Manifest& manifest,
                                  SafetensorsModel& model);

// The tensors in the order for a safetensors file. This is the image's order, unless a tensor would then
// begin at an offset that is not a multiple of its element size, because a file has no padding. Some readers
// refuse such files, so tensors with larger elements come first then. The offsets stay those of the image.
std::vector<Tensor> SafetensorsOrder(const ImageLayout& layout);

// The first bytes of a safetensors file with these tensors in this order (length and padded JSON); tensor
// data follows back to back. INVALID_ARGUMENT for a name or size that a safetensors file can't have.
absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<Tensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata);

// Writes a whole image as one file, in SafetensorsOrder, which appears synced and whole or not at all.
// RESOURCE_EXHAUSTED when the disk is full; CANCELLED or DEADLINE_EXCEEDED soon after the context ends.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata, ConstHostSpan image,
                              const RequestContext& context = {});
// As above, for tensors that lie anywhere: `bytes_of` gives the bytes of a tensor of the layout.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata,
                              absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                              const RequestContext& context = {});

}  // namespace tensorcast
