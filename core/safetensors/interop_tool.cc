// For interop_test.py: `check PATH` opens a model, `rewrite PATH OUT` reads it and writes it again as one
// file. Prints the error and exits with 1 when that fails.

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {
namespace {

absl::Status Rewrite(const std::string& path, const std::string& out) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(path));
  std::vector<std::byte> image(model.layout.image_bytes);
  for (const ObjectExtent& extent : model.extents) {
    const HostSpan destination = std::span(image).subspan(extent.image_offset, extent.bytes);
    TC_RETURN_IF_ERROR(
        model.objects[extent.object]->Read({}, extent.object_offset, destination, extent.bytes));
  }
  return WriteSafetensors(out, model.layout, model.metadata, image);
}

absl::Status Run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "check") return OpenSafetensors(arguments[1]).status();
  if (arguments.size() == 3 && arguments[0] == "rewrite") return Rewrite(arguments[1], arguments[2]);
  return absl::InvalidArgumentError("usage: check PATH | rewrite PATH OUT");
}

}  // namespace
}  // namespace tensorcast

int main(int argc, char** argv) {
  const absl::Status status = tensorcast::Run({argv + 1, argv + argc});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
