#include "tools/workshop/model/llama_model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {
namespace {

constexpr uint64_t kBf16Bytes = 2;

struct Dimensions {
  uint64_t hidden;
  uint64_t intermediate;
  uint64_t key_value;
  uint64_t vocabulary;
};

// Llama 3.2 1B's widths for models that are large enough to have a few such layers, narrower ones below that.
Dimensions DimensionsFor(uint64_t bytes) {
  if (bytes >= uint64_t{512} << 20) return {2048, 8192, 512, 32000};
  if (bytes >= uint64_t{64} << 20) return {1024, 2816, 256, 8000};
  return {256, 688, 64, 1000};
}

Tensor Bf16(std::string name, std::vector<uint64_t> shape) {
  Tensor tensor{.name = std::move(name), .dtype = DType::kBF16, .shape = std::move(shape)};
  tensor.nbytes = kBf16Bytes;
  for (const uint64_t dimension : tensor.shape) tensor.nbytes *= dimension;
  return tensor;
}

std::vector<Tensor> LayerTensors(const Dimensions& dims, uint64_t layer) {
  const auto name = [&](const char* part) {
    return absl::StrCat("model.layers.", layer, ".", part, ".weight");
  };
  return {
      Bf16(name("input_layernorm"), {dims.hidden}),
      Bf16(name("mlp.down_proj"), {dims.hidden, dims.intermediate}),
      Bf16(name("mlp.gate_proj"), {dims.intermediate, dims.hidden}),
      Bf16(name("mlp.up_proj"), {dims.intermediate, dims.hidden}),
      Bf16(name("post_attention_layernorm"), {dims.hidden}),
      Bf16(name("self_attn.k_proj"), {dims.key_value, dims.hidden}),
      Bf16(name("self_attn.o_proj"), {dims.hidden, dims.hidden}),
      Bf16(name("self_attn.q_proj"), {dims.hidden, dims.hidden}),
      Bf16(name("self_attn.v_proj"), {dims.key_value, dims.hidden}),
  };
}

uint64_t TotalBytes(const std::vector<Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes;
  return bytes;
}

// Small weights around zero as trained models have them: random mantissas and signs, exponents of 2^-7 to
// 2^-4.
class Bf16Noise {
 public:
  explicit Bf16Noise(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}

  void Fill(std::vector<uint16_t>& values) {
    for (size_t i = 0; i < values.size(); i += 4) {
      const uint64_t random = Next();
      for (size_t k = 0; k < 4 && i + k < values.size(); ++k) {
        const uint16_t bits = static_cast<uint16_t>(random >> (16 * k));
        values[i + k] = (bits & 0x807F) | ((0x3C00 + (bits & 0x0180)) & 0x7F80);
      }
    }
  }

 private:
  uint64_t Next() {  // xorshift64* (Vigna, 2016)
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  uint64_t state_;
};

// Half a model would look like one.
void RemoveFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
}

absl::Status WriteTensors(std::ofstream& file, const std::string& path, const std::vector<Tensor>& tensors,
                          const RequestContext& context, Bf16Noise& noise) {
  std::vector<uint16_t> block(uint64_t{1} << 19);
  for (const Tensor& tensor : tensors) {
    for (uint64_t left = tensor.nbytes; left > 0;) {
      TC_RETURN_IF_ERROR(context.Check(absl::StrCat("writing ", path)));
      const uint64_t bytes = std::min<uint64_t>(left, block.size() * kBf16Bytes);
      noise.Fill(block);
      if (!file.write(reinterpret_cast<const char*>(block.data()), bytes)) {
        return ErrnoStatus(errno, "write", path);
      }
      left -= bytes;
    }
  }
  file.close();
  if (!file) return ErrnoStatus(errno, "write", path);
  return absl::OkStatus();
}

absl::Status WriteShard(const std::string& path, const std::vector<Tensor>& tensors,
                        const RequestContext& context, Bf16Noise& noise) {
  TC_ASSIGN_OR_RETURN(const std::string header, EncodeSafetensorsHeader(tensors, {{"format", "pt"}}));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return ErrnoStatus(errno, "create", path);
  file.write(header.data(), header.size());
  absl::Status written = WriteTensors(file, path, tensors, context, noise);
  if (!written.ok()) RemoveFile(path);
  return written;
}

// Nothing stands there that must not be written over, and there is room for about so many bytes.
absl::Status CheckTarget(const std::string& path, uint64_t bytes) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  const bool is_file = std::filesystem::is_regular_file(there);
  if (std::filesystem::exists(there) && !is_file && !std::filesystem::is_directory(there)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is neither a file nor a folder: choose another name"));
  }
  std::filesystem::space_info space;
  // The folder may have to be created, and those above it.
  for (std::filesystem::path folder = path;; folder = folder.parent_path()) {
    space = std::filesystem::space(folder.empty() ? "." : folder, error);
    if (!error || folder.empty() || folder == folder.parent_path()) break;
  }
  const uint64_t replaced = is_file ? std::filesystem::file_size(path, error) : 0;
  if (space.available == static_cast<uintmax_t>(-1) || bytes <= space.available + replaced) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("a model of about ", bytes, " bytes does not fit where ",
                                                   path, " would be: ", space.available,
                                                   " bytes are free there"));
}

absl::Status WriteIndex(const std::string& path, const std::map<std::string, std::string>& shard_of_tensor,
                        uint64_t total_bytes) {
  nlohmann::json index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = shard_of_tensor;
  std::ofstream file(path, std::ios::trunc);
  file << index.dump(2) << "\n";
  file.close();
  if (!file) return ErrnoStatus(errno, "write", path);
  return absl::OkStatus();
}

absl::Status WriteSharded(const std::string& folder, const std::vector<Tensor>& tensors, int shards,
                          const RequestContext& context, Bf16Noise& noise) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), "create folder", folder);

  const uint64_t total = TotalBytes(tensors);
  std::vector<std::vector<Tensor>> parts(shards);
  uint64_t before = 0;
  for (const Tensor& tensor : tensors) {
    parts[std::min<uint64_t>(before * shards / total, shards - 1)].push_back(tensor);
    before += tensor.nbytes;
  }
  std::map<std::string, std::string> shard_of_tensor;
  for (int i = 0; i < shards; ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards);
    TC_RETURN_IF_ERROR(WriteShard(absl::StrCat(folder, "/", name), parts[i], context, noise));
    for (const Tensor& tensor : parts[i]) shard_of_tensor[tensor.name] = name;
  }
  return WriteIndex(folder + "/model.safetensors.index.json", shard_of_tensor, total);
}

}  // namespace

std::vector<Tensor> LlamaTensors(uint64_t bytes) {
  const Dimensions dims = DimensionsFor(bytes);
  std::vector<Tensor> tensors = {Bf16("model.embed_tokens.weight", {dims.vocabulary, dims.hidden})};
  const uint64_t layer_bytes = TotalBytes(LayerTensors(dims, 0));
  const uint64_t fixed_bytes = TotalBytes(tensors);
  const uint64_t for_layers = bytes > fixed_bytes ? bytes - fixed_bytes : 0;
  const uint64_t layers = std::max<uint64_t>(1, (for_layers + layer_bytes / 2) / layer_bytes);
  for (uint64_t layer = 0; layer < layers; ++layer) {
    for (Tensor& tensor : LayerTensors(dims, layer)) tensors.push_back(std::move(tensor));
  }
  tensors.push_back(Bf16("model.norm.weight", {dims.hidden}));
  return tensors;
}

absl::Status WriteLlamaModel(const std::string& path, const LlamaModelOptions& options) {
  if (path.empty()) return absl::InvalidArgumentError("the path to write a model to is empty");
  if (options.bytes > kMaxLlamaModelBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a model of ", options.bytes,
                                                   " bytes was asked for: at most ", kMaxLlamaModelBytes,
                                                   " (16TiB) are written"));
  }
  TC_RETURN_IF_ERROR(CheckTarget(path, options.bytes));
  const std::vector<Tensor> tensors = LlamaTensors(options.bytes);
  if (options.shards > static_cast<int>(tensors.size())) {
    return absl::InvalidArgumentError(absl::StrCat("a model of this size has ", tensors.size(),
                                                   " tensors and cannot be cut into ", options.shards,
                                                   " shards; ask for fewer"));
  }
  Bf16Noise noise(options.seed);
  if (options.shards > 1) return WriteSharded(path, tensors, options.shards, options.context, noise);
  return WriteShard(path, tensors, options.context, noise);
}

}  // namespace tensorcast
