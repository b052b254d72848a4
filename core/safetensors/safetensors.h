// Reads and writes the safetensors format (https://github.com/huggingface/safetensors#format): single files,
// and folders with a model.safetensors.index.json. Only headers are parsed here; an object source
// (core/source) reads tensor bytes. A malformed file is an error, never a crash. Stateless; thread-safe.
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
  bool has_metadata = false;                    // the header has __metadata__, which may be empty
  uint64_t data_offset = 0;                     // the offset of the data section in the file
  uint64_t data_bytes = 0;
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

// An empty __metadata__ differs from no __metadata__. In the metadata of a model or an artifact, this key
// alone, with an empty value, stands for an empty __metadata__.
inline constexpr std::string_view kEmptyMetadataKey = "__metadata__";

// As TensorBytes, with one more rule of the reference library: the product of the dimensions, taken in order,
// must not overflow before a zero is reached.
absl::StatusOr<uint64_t> SafetensorsTensorBytes(DType dtype, const std::vector<uint64_t>& shape);

// Parses a header and checks all requirements of the format: a valid JSON object without repeated keys, known
// dtypes, sizes that follow from shapes, and data that covers the data section without gaps or overlaps.
// `header` is the JSON without the 8-byte length; `data_bytes` is the size of the data section.
// INVALID_ARGUMENT, naming the tensor and the violation.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes);

// A model and the image that it becomes. The tensors are sorted by shard name, then by offset.
struct SafetensorsModel {
  ObjectReaders objects;              // the opened files
  std::vector<std::string> shards;    // one for each object: its name for the keys of `metadata`
  std::vector<ObjectExtent> extents;  // of the tensors' bytes, in image order; neighbours are joined
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  // The folder in which the model was found; null if the caller named a file or gave objects.
  std::shared_ptr<ObjectFolder> folder = {};
};

// Opens the model at `uri`: a .safetensors file, or a folder with model.safetensors.index.json, a single
// model.safetensors, or an adapter's adapter_model.safetensors. If listing the folder is denied, these names
// are tried. Nothing outside the folder is read. If two shards have different values for a metadata key, the
// first shard keeps the key and the value of the other shard is stored under "<shard>/<key>".
//
// INVALID_ARGUMENT, naming file and tensor, for a malformed model; NOT_FOUND for a folder without a model;
// other errors are those of `store` and of the context.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const RequestContext& context, const ObjectStore& store,
                                                 const std::string& uri);
// As above, for tools: opens files that this process may read. NOT_FOUND for a missing file or shard.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const std::string& path);
// Reads the model that consists of these open objects, in this order. `shards` are their names in the keys of
// the metadata; if empty, their URIs are used.
absl::StatusOr<SafetensorsModel> ReadSafetensors(const RequestContext& context, const ObjectReaders& objects,
                                                 std::vector<std::string> shards = {});
// Reads the headers of a model a second time, and replaces the contents of `model`; its folder becomes null.
// `manifest` is from the first reading. ABORTED if the headers now describe other tensors or metadata.
absl::Status ReadSafetensorsAgain(const RequestContext& context, const Manifest& manifest,
                                  SafetensorsModel& model);

// The tensors in the order for a safetensors file: usually the image's order. A file has no padding, and some
// readers refuse misaligned tensors. If the image's order would misalign a tensor, tensors with larger
// elements come first. Tensor::offset stays the offset in the image.
std::vector<Tensor> SafetensorsOrder(const ImageLayout& layout);

// The first bytes of a safetensors file with these tensors in this order: the length and the padded JSON. The
// tensors' data follows without gaps. INVALID_ARGUMENT for a name or size that a safetensors file cannot
// have.
absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<Tensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata);

// Writes a whole image as one file, in SafetensorsOrder. The file appears completely, and synced, or not at
// all. RESOURCE_EXHAUSTED if the disk is full; CANCELLED or DEADLINE_EXCEEDED soon after the context ends.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata, ConstHostSpan image,
                              const RequestContext& context = {});
// As above, for tensors anywhere in memory: `bytes_of` returns the bytes of a tensor of the layout.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata,
                              absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                              const RequestContext& context = {});

}  // namespace tensorcast
