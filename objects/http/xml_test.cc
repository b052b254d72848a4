#include "objects/http/xml.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tensorcast::objects {
namespace {

TEST(Xml, Document_HasElementsAndText) {
  const auto root = ParseXml(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<List xmlns=\"http://a/\"><Key>a &amp; b&#10;</Key>"
      "<s:Key>c</s:Key><Owner><Id>1</Id></Owner></List>");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->name, "List");
  ASSERT_EQ(root->children.size(), 3);
  EXPECT_EQ(root->TextOf("Key"), "a & b\n");
  EXPECT_EQ(root->children[1].name, "Key");
  EXPECT_EQ(root->children[2].TextOf("Id"), "1");
  EXPECT_EQ(root->TextOf("None"), "");
}

TEST(Xml, HostileDocument_IsRefused) {
  for (const std::string& document :
       {std::string(), std::string("text"), std::string("<a><b></a>"), std::string("<a></a><b></b>"),
        std::string("<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>"),
        absl::StrCat("<a>", std::string(1000, '<'), "</a>"), std::string("<a>\x01</a>")}) {
    EXPECT_FALSE(ParseXml(document).ok()) << document;
  }
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  for (int i = 0; i < 100; ++i) deep += "</a>";
  EXPECT_FALSE(ParseXml(deep).ok());
}

}  // namespace
}  // namespace tensorcast::objects
