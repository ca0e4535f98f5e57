@echo off
rem Builds build\nova.exe from examples/nova.c and nova.c with cl, clang-cl or MinGW's gcc, the first that is found.
rem For cl, start this from Visual Studio's "x64 Native Tools Command Prompt".
setlocal
cd /d "%~dp0"
if not exist build mkdir build
rem GPUs need the Vulkan SDK for building.
set vulkan=-DNOVA_NO_VULKAN
if defined VULKAN_SDK set vulkan="-I%VULKAN_SDK%\Include"

cl >nul 2>nul
if not errorlevel 1 set compiler=cl
if not errorlevel 1 goto microsoft
clang-cl --version >nul 2>nul
if not errorlevel 1 set compiler=clang-cl
if not errorlevel 1 goto microsoft
gcc --version >nul 2>nul
if not errorlevel 1 goto mingw
echo build.bat: none of cl, clang-cl and gcc is in PATH. 1>&2
exit /b 1

:microsoft
rem Two steps: the two files share a name, and so would their objects.
%compiler% /nologo /std:c11 /utf-8 /O2 %vulkan% /c nova.c /Fobuild\libnova.obj
if errorlevel 1 exit /b 1
%compiler% /nologo /std:c11 /utf-8 /O2 /I. examples/nova.c build\libnova.obj /Fobuild\ /Febuild\nova.exe
if errorlevel 1 exit /b 1
goto done

:mingw
gcc -std=c11 -O2 %vulkan% -I. -o build/nova.exe examples/nova.c nova.c -static
if errorlevel 1 exit /b 1

:done
echo built build\nova.exe
exit /b 0
