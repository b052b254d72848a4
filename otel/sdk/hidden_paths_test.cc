#include "otel/sdk/hidden_paths.h"

#include <gtest/gtest.h>

namespace tensorcast::otel::hidden_paths_test {
namespace {

using sdk::HidePaths;

TEST(HidePaths, PathInErrorOfImport_IsHidden) {
  EXPECT_EQ(HidePaths("import /etc/shadow: open /etc/shadow: not a safetensors file; write it again"),
            "import <path>: open <path>: not a safetensors file; write it again");
}

TEST(HidePaths, ImportRoots_AreHidden) {
  EXPECT_EQ(HidePaths("open /a/b: it is outside of daemon.import_roots (/data/models, /home/eve/private)"),
            "open <path>: it is outside of daemon.import_roots (<path>, <path>)");
}

TEST(HidePaths, PathWithBlanks_IsHiddenWhole) {
  EXPECT_EQ(HidePaths("open /data/my secret model.safetensors: No such file"), "open <path>: No such file");
  EXPECT_EQ(HidePaths("the file \"/data/it's: here\" is gone"), "the file \"<path>\" is gone");
}

TEST(HidePaths, RelativeAndHomePaths_AreHidden) {
  EXPECT_EQ(HidePaths("read ./a/b: x"), "read <path>: x");
  EXPECT_EQ(HidePaths("read ../b: x"), "read <path>: x");
  EXPECT_EQ(HidePaths("~/models/x"), "<path>");
}

TEST(HidePaths, SocketsAndFileUris_AreHidden) {
  EXPECT_EQ(HidePaths("connect to unix:/run/user/7/daemon.sock: no daemon"),
            "connect to unix:<path>: no daemon");
  EXPECT_EQ(HidePaths("open file:///data/x, again"), "open <path>, again");
}

TEST(HidePaths, TextWithoutPaths_StaysAsItIs) {
  for (const char* text :
       {"", "/", "get llama/prod: no source has chunk 17; start node-b", "GlobalStore/ResolveKey failed",
        "1 / 2", "GET https://host:443/v1/models: status 404", "s3://bucket/a/b is not there",
        "10.0.0.1:7000"}) {
    EXPECT_EQ(HidePaths(text), text);
  }
}

}  // namespace
}  // namespace tensorcast::otel::hidden_paths_test
