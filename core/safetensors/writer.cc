#include <algorithm>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"
#include "core/safetensors/output_file.h"
#include "core/safetensors/safetensors.h"
#include "nlohmann/json.hpp"

namespace tensorcast {
namespace {

// The data begins behind 8 bytes of length and the header: at a multiple of 8.
constexpr uint64_t kHeaderAlignment = 8;

// REQUIRES: text is valid UTF-8.
std::string JsonString(const std::string& text) { return nlohmann::json(text).dump(); }

// Why this tensor cannot be in a file.
template <class... Parts>
absl::Status Refuse(const Tensor& tensor, const Parts&... why) {
  return absl::InvalidArgumentError(absl::StrCat("write tensor ", QuoteName(tensor.name), ": ", why...));
}

absl::Status CheckTensor(const Tensor& tensor, absl::flat_hash_set<std::string_view>& names) {
  if (!IsValidUtf8(tensor.name)) {
    return Refuse(tensor, "the name is not valid UTF-8; put the tensor under another name");
  }
  if (tensor.name == "__metadata__") {
    return Refuse(tensor, "safetensors reserves this name; put the tensor under another name");
  }
  if (!names.insert(tensor.name).second) {
    return Refuse(tensor, "two tensors have this name; rename one tensor");
  }
  const absl::StatusOr<uint64_t> bytes = SafetensorsTensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return Refuse(tensor, bytes.status().message());
  if (*bytes == tensor.nbytes) return absl::OkStatus();
  return Refuse(tensor, "the tensor has ", tensor.nbytes, " bytes, but its dtype and shape need ", *bytes,
                " bytes; correct the shape");
}

absl::StatusOr<std::string> EncodeMetadata(const std::map<std::string, std::string>& metadata) {
  // The mark of a header with empty metadata (ModelBuilder::Build) becomes that again.
  if (metadata.size() == 1 && metadata.begin()->first == kEmptyMetadataKey &&
      metadata.begin()->second.empty()) {
    return "\"__metadata__\":{}";
  }
  std::string json;
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("write metadata ", QuoteName(key),
                       ": the key or the value is not valid UTF-8; encode both as UTF-8"));
    }
    absl::StrAppend(&json, json.empty() ? "" : ",", JsonString(key), ":", JsonString(value));
  }
  return absl::StrCat("\"__metadata__\":{", json, "}");
}

// Elements below a byte are packed, and need no alignment.
uint64_t ElementBytes(DType dtype) { return std::max<uint64_t>(FindDType(dtype)->bits / 8, 1); }

// Whether every tensor begins at a multiple of its element's size. The file has no padding, so a tensor of
// odd size can move the tensors behind it to other offsets, which some readers refuse.
bool IsAlignedBackToBack(const std::vector<Tensor>& tensors) {
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    if (offset % ElementBytes(tensor.dtype) != 0) return false;
    offset += tensor.nbytes;
  }
  return true;
}

}  // namespace

std::vector<Tensor> SafetensorsOrder(const ImageLayout& layout) {
  std::vector<Tensor> tensors = layout.tensors;
  if (!IsAlignedBackToBack(tensors)) {
    // Element sizes are powers of two: behind larger elements every smaller one is aligned.
    std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return ElementBytes(a.dtype) > ElementBytes(b.dtype);
    });
  }
  return tensors;
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<Tensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    TC_ASSIGN_OR_RETURN(const std::string encoded, EncodeMetadata(metadata));
    json += encoded;
  }
  absl::flat_hash_set<std::string_view> names;
  names.reserve(tensors.size());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    TC_RETURN_IF_ERROR(CheckTensor(tensor, names));
    absl::StrAppend(&json, json.size() > 1 ? "," : "", JsonString(tensor.name), ":{\"dtype\":\"",
                    DTypeName(tensor.dtype), "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", offset, ",", offset + tensor.nbytes, "]}");
    offset += tensor.nbytes;
  }
  json += '}';
  // The format allows spaces behind the JSON.
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "write a safetensors header: the header has ", json.size(), " bytes, and the format allows at most ",
        kMaxSafetensorsHeaderBytes, " bytes; write fewer tensors into one file"));
  }
  return ByteWriter().Put(uint64_t{json.size()}).Put(json).Take();
}

absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata, ConstHostSpan image,
                              const RequestContext& context) {
  if (image.size() < layout.image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("write ", path, ": the image has ", image.size(),
                                                   " bytes, and the layout needs ", layout.image_bytes,
                                                   " bytes; pass the whole image"));
  }
  const auto bytes_of = [&image](const Tensor& tensor) {
    return image.subspan(tensor.offset, tensor.nbytes);
  };
  return WriteSafetensors(path, layout, metadata, bytes_of, context);
}

absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata,
                              absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                              const RequestContext& context) {
  TC_RETURN_IF_ERROR(ValidateLayout(layout));
  const std::vector<Tensor> tensors = SafetensorsOrder(layout);
  TC_ASSIGN_OR_RETURN(const std::string header, EncodeSafetensorsHeader(tensors, metadata));
  // The whole size is known before the first byte is written, so the room for it can be reserved.
  uint64_t file_bytes = header.size();
  for (const Tensor& tensor : tensors) file_bytes += tensor.nbytes;
  OutputFile file(path, context);
  TC_RETURN_IF_ERROR(file.Create(file_bytes));
  TC_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(header))));
  for (const Tensor& tensor : tensors) {
    const ConstHostSpan bytes = bytes_of(tensor);
    if (bytes.size() != tensor.nbytes) {
      return Refuse(tensor, "the tensor has ", tensor.nbytes, " bytes, and ", bytes.size(),
                    " bytes were given; pass all bytes");
    }
    TC_RETURN_IF_ERROR(file.Append(bytes));
  }
  return file.Publish();
}

}  // namespace tensorcast
