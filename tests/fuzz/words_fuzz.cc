// Short texts of people and peers: a location, a size, a duration, a gRPC method.
#include "absl/log/check.h"
#include "base/units.h"
#include "core/replica/replica.h"
#include "rpc/call_observer.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  if (const auto location = Location::Parse(input); location.ok()) CHECK_EQ(location->ToString(), input);
  if (const auto size = ParseSize(input); size.ok()) {
    CHECK_EQ(ParseSize(FormatSize(*size)).value(), *size) << input;
  }
  if (const auto duration = ParseDuration(input); duration.ok()) {
    CHECK_GE(*duration, absl::ZeroDuration()) << input;
  }
  const rpc::MethodName name = rpc::ParseMethod(input);
  CHECK_LE(name.service.size() + name.method.size(), input.size());
  CHECK(name.label.ends_with(name.method)) << input;
}

std::vector<std::string> Seeds() {
  return {"gpu:7",    "cpu", "disk", "64GiB",        "1.5 MiB", "9223372036854775807B",
          "10000 TB", "0.1", "7d",   "1h30m250.5ms", "1e300h",  "/tensorcast.v1.GlobalStore/BindKey",
          "/",        "///", ""};
}

}  // namespace tensorcast::fuzz
