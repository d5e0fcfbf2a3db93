#include "server/net/header_block.h"

#include <gtest/gtest.h>

#include <string>

namespace polysketch {
namespace {

using namespace std::string_literals;

class HeaderBlockTest : public ::testing::Test {
 protected:
  // The result for a block, which must not depend on how it is cut.
  Code Scan(const std::string& block) {
    const Code whole = ScanCut(block, block.size());
    for (size_t cut = 1; cut < std::min<size_t>(block.size(), 8); ++cut)
      EXPECT_EQ(ScanCut(block, cut), whole) << cut;
    return whole;
  }

 private:
  Code ScanCut(const std::string& block, size_t cut) {
    scanner_.Begin();
    for (size_t at = 0; at < block.size(); at += cut) {
      if (const Status status = scanner_.Add(block.substr(at, cut)); !status.ok())
        return status.code();
    }
    return scanner_.End().code();
  }

  HeaderBlockScanner scanner_{/*max_bytes=*/400, /*max_fields=*/10};
};

TEST_F(HeaderBlockTest, FieldsOfEveryForm) {
  EXPECT_EQ(Scan(""), Code::kOk);
  EXPECT_EQ(Scan("\x83\x86"), Code::kOk);      // indexed
  EXPECT_EQ(Scan("\xff\x80\x01"), Code::kOk);  // indexed, 127 + 128
  EXPECT_EQ(Scan("\x40\x01"
                 "a"
                 "\x01"
                 "b"),
            Code::kOk);                         // with indexing, a new name
  EXPECT_EQ(Scan("\x44\x05/path"), Code::kOk);  // with indexing, a name of the table
  EXPECT_EQ(Scan("\x00\x01"
                 "a"
                 "\x00"s),
            Code::kOk);  // without indexing, an empty value
  EXPECT_EQ(Scan("\x1f\x20\x01"
                 "b"),
            Code::kOk);                        // never indexed, index 15 + 32
  EXPECT_EQ(Scan("\x20\x3f\x45"), Code::kOk);  // sizes of the table
  EXPECT_EQ(Scan("\x04\x85"
                 "12345"
                 "\x83"),
            Code::kOk);                                                         // Huffman coding
  EXPECT_EQ(Scan("\x04\x7f\x49" + std::string(200, 'x') + "\x83"), Code::kOk);  // 127 + 73 bytes
}

TEST_F(HeaderBlockTest, BoundsFields) {
  EXPECT_EQ(Scan(std::string(10, '\x90')), Code::kOk);
  EXPECT_EQ(Scan(std::string(11, '\x90')), Code::kResourceExhausted);
  EXPECT_EQ(Scan(std::string(11, '\x20')), Code::kResourceExhausted);
}

TEST_F(HeaderBlockTest, BoundsBytes) {
  const std::string field = "\x04\x7f\x48" + std::string(199, 'x');
  EXPECT_EQ(Scan(field), Code::kOk);
  EXPECT_EQ(Scan(field + field), Code::kResourceExhausted);
}

TEST_F(HeaderBlockTest, IntegersHaveAnEnd) {
  EXPECT_EQ(Scan("\xff\xff\xff\xff\x7f"), Code::kOk);
  EXPECT_EQ(Scan("\xff\xff\xff\xff\xff\x7f"), Code::kInvalidArgument);
  EXPECT_EQ(Scan(std::string(100, '\xff')), Code::kInvalidArgument);
  EXPECT_EQ(Scan("\x04\xff\xff\xff\xff\xff\x01"), Code::kInvalidArgument);
}

TEST_F(HeaderBlockTest, ABlockEndsWithAField) {
  for (const std::string& part : {"\x04"s, "\x04\x02"s, "\x04\x02/"s, "\xff"s,
                                  "\x00\x01"
                                  "a"s})
    EXPECT_EQ(Scan("\x83" + part), Code::kInvalidArgument);
}

}  // namespace
}  // namespace polysketch
