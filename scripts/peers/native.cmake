# Read by llama.cpp's build right after its project() line (scripts/peers/native.py names it).

# The very options of specllama's own llama.cpp, so that the two differ in their programs alone,
include("${CMAKE_CURRENT_LIST_DIR}/../llama_build.cmake")
# but the programs need the common code.
set(LLAMA_BUILD_COMMON ON)
