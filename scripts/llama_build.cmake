# Read by llama-cpp-python's build right after its project() line (scripts/setup.py names it).

# specllama uses the library alone, not llama.cpp's common code or its image tools: 83 steps, not 193.
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)

# A processor may advertise AMX that its hypervisor does not enable; code built for it then dies.
include(CheckCompilerFlag)
foreach(flag amx-tile amx-int8 amx-bf16)
    string(MAKE_C_IDENTIFIER "HAS_NO_${flag}" accepted)
    check_compiler_flag(C "-mno-${flag}" ${accepted}_C)
    check_compiler_flag(CXX "-mno-${flag}" ${accepted}_CXX)
    add_compile_options(
        "$<$<AND:$<BOOL:${${accepted}_C}>,$<COMPILE_LANGUAGE:C>>:-mno-${flag}>"
        "$<$<AND:$<BOOL:${${accepted}_CXX}>,$<COMPILE_LANGUAGE:CXX>>:-mno-${flag}>")
endforeach()
