// The contract of MetadataStore: a suite that each backend's test instantiates with how to open one.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// Opens an empty store, which may use the folder; null, with a failure, where that does not work. What it
// stands on lives as long as the store.
using OpenEmptyStore = std::shared_ptr<MetadataStore> (*)(const std::filesystem::path& folder);

class MetadataStoreContract : public ::testing::TestWithParam<OpenEmptyStore> {
 protected:
  void SetUp() override;
  void TearDown() override;
  DurableFacts Load();

  std::filesystem::path folder_;
  std::shared_ptr<MetadataStore> store_;
};

}  // namespace tensorcast::global_store
